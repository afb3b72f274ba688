import importlib
import importlib.machinery
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kserve_torch.namespace import imports, searchpath
from kserve_torch.namespace.loader import Namespace

from ..makers import Files, write

Make = Callable[..., Namespace]

HANDLER = """
import os, sys
root = os.path.dirname(os.path.abspath(__file__))
code = os.path.join(root, "code")
{}
from tool import NAME
def late():
    from later import NAME
    return NAME
"""


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``sys.path``; afterwards it is as it was."""
    imports.install()
    monkeypatch.setattr(sys, "path", list(sys.path))
    return sys.path


@pytest.fixture
def make(tmp_path: Path, search: list[str]) -> Iterator[Make]:
    """Makes a namespace of a folder ``name`` whose handler runs ``statement`` first."""
    made: list[Namespace] = []

    def make_one(
        name: str, statement: str, folder: str | None = None, more: Files | None = None
    ) -> Namespace:
        files: Files = {
            "handler.py": HANDLER.format(statement),
            "code/tool.py": f"NAME = '{name}'",
            "code/later.py": f"NAME = 'later {name}'",
            **(more or {}),
        }
        made.append(Namespace(write(tmp_path / (folder or name), files)))
        return made[-1]

    yield make_one
    for namespace in made:
        namespace.close()


@pytest.mark.parametrize(
    "statement",
    [
        "sys.path.insert(0, code)",
        "sys.path.append(code)",
        "sys.path.append(os.path.realpath(code))",
        "sys.path.insert(0, code); import tool, later; sys.path.remove(code)",
        "sys.path.insert(0, code); import tool, later; sys.path.pop(0)",
        "sys.path.insert(0, 'code')",
    ],
)
def test_folders_that_archives_add_are_their_own(
    make: Make, search: list[str], statement: str
) -> None:
    before = list(search)
    spaces = [make(name, statement) for name in ("one", "two")]
    one, two = (namespace.import_module("handler") for namespace in spaces)
    assert (one.NAME, one.late()) == ("one", "later one")
    assert (two.NAME, two.late()) == ("two", "later two")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("later")
    for namespace in spaces:
        namespace.close()
    assert [entry for entry in search if entry != "code"] == before


def test_relative_folders_may_start_at_the_directory_that_the_handler_works_in(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handler = make("one", "os.chdir(code); sys.path.append('.')").import_module("handler")
    assert (handler.NAME, handler.late()) == ("one", "later one")


def test_imports_need_no_working_directory(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = make("one", "sys.path.append('code')").import_module("handler")
    monkeypatch.chdir(tmp_path)  # and back at the end
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert handler.late() == "later one"
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    assert importlib.import_module("tabnanny")


def test_two_instances_of_one_archive_share_its_folders(make: Make, search: list[str]) -> None:
    statement = "if code not in sys.path: sys.path.append(code)"
    one, two = make("one", statement), make("one", statement)
    found = [namespace.import_module("handler").late() for namespace in (one, two)]
    assert found == ["later one"] * 2
    assert search.count(str(one.root / "code")) == 1
    one.close()
    assert two.import_module("later").NAME == "later one"
    assert str(two.root / "code") in search


def test_the_end_of_one_archive_is_not_that_of_another(make: Make, search: list[str]) -> None:
    one, two = (make(name, "sys.path.append(code)") for name in ("one", "two"))
    for namespace in (one, two):
        namespace.import_module("handler")
    one.close()
    for root, is_open in ((one.root, False), (two.root, True)):
        assert searchpath.is_an_archives(str(root / "code")) is is_open
        assert (str(root / "code") in search) is is_open


def test_folders_come_before_or_after_the_archives_own(make: Make) -> None:
    more = {"tool.py": "NAME = 'root'"}
    first = make("one", "sys.path.insert(0, code)", more=more).import_module("handler")
    second = make("two", "sys.path.append(code)", more=more).import_module("handler")
    assert (first.NAME, second.NAME) == ("one", "root")


def test_a_link_to_the_archives_folder(make: Make, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    one = make("one", "sys.path.insert(0, os.path.realpath(code))", folder="link")
    assert one.import_module("handler").NAME == "one"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("tool")


def test_unpicklers_after_the_models_folder_was_added(make: Make) -> None:
    statement, more = "sys.path += [root, code]", {"net.py": "class Net: pass"}
    spaces = [make(name, statement, more=more) for name in ("one", "two")]
    for namespace in spaces:
        namespace.import_module("handler")
    nets = [namespace.import_module("net").Net for namespace in spaces]
    data = pickle.dumps(nets[0](), protocol=2).replace(nets[0].__module__.encode(), b"net")
    for namespace, net in zip(spaces, nets, strict=True):
        with namespace.activate():
            assert type(pickle.loads(data)) is net


def test_folders_elsewhere_are_everybodys(make: Make, tmp_path: Path) -> None:
    shared = write(tmp_path / "shared", {"shared_by_all.py": "X = 1"})
    statement = f"sys.path += [{str(shared)!r}, code]; import shared_by_all"
    handler = make("one", statement).import_module("handler")
    assert sys.modules.pop("shared_by_all") is handler.shared_by_all


def test_a_folder_of_the_servers_own_stays_so(make: Make, tmp_path: Path) -> None:
    """A server may be started in a model's folder, with its packages below it."""
    server = [entry for entry in sys.path if os.path.isabs(entry)]
    namespace = Namespace(Path(server[-1]).parent)
    assert importlib.util.find_spec("yaml") is not None
    namespace.close()
    assert [entry for entry in sys.path if os.path.isabs(entry)] == server


def test_others_find_the_path_finder_by_its_name() -> None:
    imports.install()
    found = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder"]
    assert len(found) == 1
    assert issubclass(found[0], importlib.machinery.PathFinder)
