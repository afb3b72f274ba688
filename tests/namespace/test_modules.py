import importlib
import sys
import threading
import types
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from unittest import mock

import pytest

from kserve_torch.namespace.loader import Namespace

from ..makers import write
from .conftest import NET


@pytest.mark.parametrize("two", ["import sys\n"], indirect=True)
@pytest.mark.parametrize("its_own", [True, False])
def test_modules_that_ran_before_or_are_none_of_its_files_keep_their_names(
    two: list[types.ModuleType], tmp_path: Path, its_own: bool
) -> None:
    file = two[0].model.__file__ if its_own else write(tmp_path / "c", {"m.py": NET}) / "m.py"
    spec = spec_from_file_location("kt_run", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    if its_own:
        spec.loader.exec_module(module)
    two[0].sys.modules[spec.name] = module
    assert sys.modules.pop("kt_run") is module
    assert module.__name__ == "kt_run"


@pytest.mark.parametrize("two", ["import sys, types\n"], indirect=True)
def test_what_is_no_module_of_an_archive_is_for_everybody(two: list[types.ModuleType]) -> None:
    modules = two[0].sys.modules
    modules["kt_stand_in"] = two[0].types.ModuleType("kt_stand_in")
    assert "kt_stand_in" in two[1].sys.modules
    assert importlib.import_module("kt_stand_in") is modules.pop("kt_stand_in")
    assert "kt_stand_in" not in sys.modules
    assert modules["json"] is sys.modules["json"]
    assert len(modules) == len(modules.copy()) == len(list(modules))


@pytest.mark.parametrize("two", ["import sys, types\n"], indirect=True)
def test_what_is_put_below_a_module_of_an_archive_is_its_own(two: list[types.ModuleType]) -> None:
    """For the time of a ``load_from_checkpoint``, two copies of Lightning do so at once."""
    made = [handler.types.ModuleType("model.old") for handler in two]
    for handler, module in zip(two, made, strict=True):
        handler.sys.modules["model.old"] = module
    assert "model.old" not in sys.modules
    for handler, module in zip(two, made, strict=True):
        assert handler.namespace.import_module("model.old") is module
        del handler.sys.modules["model.old"]
        assert "model.old" not in handler.sys.modules


@pytest.mark.parametrize("two", ["import sys\n"], indirect=True)
def test_modules_are_there_under_their_bare_names(two: list[types.ModuleType]) -> None:
    one, other = two
    assert one.sys.modules["model"] is one.model is not other.sys.modules["model"]
    assert one.sys.modules[one.__name__] is one
    assert "shared" not in one.sys.modules
    taken = one.sys.modules.pop("model")
    again = one.namespace.import_module("model")
    assert again is not taken
    assert other.namespace.import_module("model") is other.model
    one.sys.modules["model"] = taken
    assert one.namespace.import_module("model") is taken
    one.sys.modules["kt_pkg"] = taken
    del one.sys.modules["kt_pkg"]  # a name for the time of a torch.load
    assert "kt_pkg" not in one.sys.modules
    assert one.namespace.import_module("model") is taken
    one.sys.modules["kt_pkg"] = again
    one.sys.modules["kt_pkg.part"] = taken
    assert one.namespace.import_module("kt_pkg.part") is taken


@pytest.mark.parametrize("two", ["import sys\nsys.modules['__main__'].X = 1\n"], indirect=True)
def test_who_puts_everything_back_keeps_the_archives_main(two: list[types.ModuleType]) -> None:
    modules = two[0].sys.modules
    with mock.patch.dict(modules, {"kt_missing": None}):
        assert sys.modules["kt_missing"] is None
    modules.update({"__main__": sys.modules["__main__"]})
    assert modules["__main__"].X == 1
    assert "kt_missing" not in sys.modules


@pytest.mark.parametrize("two", ["import sys\n"], indirect=True)
def test_who_puts_everything_back_leaves_others_imports(
    two: list[types.ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or other threads would import anew what they find missing: ``_io``, most often."""
    modules, model, real = two[0].sys.modules, two[0].model, types.ModuleType("kt_real")
    late = f"{two[0].__name__}.late"
    for name in ("kt_real", "kt_taken"):
        monkeypatch.setitem(sys.modules, name, real)
    with mock.patch.dict(modules, {"kt_missing": None, "kt_real": None}):
        sys.modules["kt_guest"] = real
        modules[late] = types.ModuleType(late)
        del modules["kt_taken"]
        everything = sys.modules.copy()
        modules.clear()
        assert sys.modules == everything
    assert modules["kt_real"] is modules["kt_taken"] is sys.modules.pop("kt_guest") is real
    assert "kt_missing" not in modules
    assert late not in modules
    assert modules["model"] is model


@pytest.mark.parametrize("two", ["import sys\n"], indirect=True)
def test_going_through_all_is_safe_beside_imports(two: list[types.ModuleType]) -> None:
    modules, ended = two[0].sys.modules, threading.Event()

    def comes_and_goes() -> None:
        while not ended.is_set():
            import colorsys  # which imports nothing, and which nothing else here imports

            sys.modules.update(kt_guest=colorsys)
            del sys.modules["kt_guest"]

    thread = threading.Thread(target=comes_and_goes)
    thread.start()
    try:
        for _ in range(30):
            with mock.patch.dict(modules, {"kt_missing": None}):
                pass
            assert min(len(list(modules.items())), len(list(modules.values()))) > 100
    finally:
        ended.set()
        thread.join()
    assert sys.modules["colorsys"] is modules["colorsys"]


FORGET = """import sys
for name in ORDER(list(sys.modules)):
    if name.partition(".")[0] in ("utils", "models"):
        FORGETS
"""
ON_THE_PATH = """import sys
def load(folder):
    sys.path.insert(0, folder)
    import models.net
    sys.path.remove(folder)
    return models.net
"""
FROM_A_FILE = """import sys
from importlib.util import module_from_spec, spec_from_file_location
def load(folder):
    for name in ("utils", "models"):
        where = f"{folder}/{name}"
        spec = spec_from_file_location(
            name, f"{where}/__init__.py", submodule_search_locations=[where]
        )
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
    import models.net
    return models.net
"""
REPOSITORIES = {
    f"{name}/{file}": text
    for name in ("one", "two")
    for file, text in {
        "models/__init__.py": "",
        "models/net.py": "from utils.general import NAME",
        "utils/__init__.py": "",
        "utils/general.py": f"NAME = {name!r}",
    }.items()
}


@pytest.mark.parametrize("order", ["list", "reversed"])
@pytest.mark.parametrize("forgets", ["del sys.modules[name]", "sys.modules.pop(name)"])
@pytest.mark.parametrize("load", [ON_THE_PATH, FROM_A_FILE])
def test_a_repository_is_forgotten_name_by_name(
    tmp_path: Path, load: str, forgets: str, order: str
) -> None:
    forget = FORGET.replace("ORDER", order).replace("FORGETS", forgets)
    text = f"{load}\nimport os\nhere = os.path.dirname(__file__)\n"
    text += f"one = load(here + '/one')\n{forget}\ntwo = load(here + '/two')\n"
    namespace = Namespace(write(tmp_path, {"handler.py": text, **REPOSITORIES}))
    try:
        with namespace.loading():
            handler = namespace.import_module("handler")
        assert (handler.one.NAME, handler.two.NAME) == ("one", "two")
    finally:
        namespace.close()


AGAIN = """import sys
import kt_pkg.part as first
import kt_pkg
for name in ORDER(list(sys.modules)):
    if WANTED:
        FORGETS
import kt_pkg.part as again
"""


@pytest.mark.parametrize("order", ["list", "reversed"])
@pytest.mark.parametrize("forgets", ["del sys.modules[name]", "sys.modules.pop(name)"])
@pytest.mark.parametrize("wanted", ["'kt_pkg' in name", "name.startswith(kt_pkg.__name__)"])
def test_a_package_is_forgotten_by_part_of_its_name_or_by_what_it_calls_itself(
    tmp_path: Path, wanted: str, forgets: str, order: str
) -> None:
    """Also in the order of a set, such as of the modules that an import has added."""
    text = AGAIN.replace("ORDER", order).replace("WANTED", wanted).replace("FORGETS", forgets)
    files = {"handler.py": text, "kt_pkg/__init__.py": "", "kt_pkg/part.py": ""}
    namespace = Namespace(write(tmp_path, files))
    try:
        handler = namespace.import_module("handler")
        assert handler.again is not handler.first
        with pytest.raises(KeyError):
            del handler.sys.modules["kt_absent"]
        with pytest.raises(KeyError):
            handler.sys.modules.pop("kt_absent")
        assert handler.sys.modules.pop("kt_absent", 1) == 1
        del handler.sys.modules[handler.kt_pkg.__name__]
        assert "kt_pkg" not in namespace.names  # is searched for again
    finally:
        namespace.close()


PUT_BACK = """import sys
import pkg.part
taken = {name: sys.modules.pop(name) for name in ORDER}
import pkg.part as anew
sys.modules.update(taken)
import pkg.part as again
"""


@pytest.mark.parametrize("order", [("pkg", "pkg.part"), ("pkg.part", "pkg")])
@pytest.mark.parametrize("installed", [True, False])
def test_modules_that_are_put_back_one_by_one(
    tmp_path: Path, order: tuple[str, str], installed: bool
) -> None:
    handler = {"handler.py": PUT_BACK.replace("ORDER", repr(order))}
    package = {"pkg/__init__.py": "", "pkg/part.py": ""}
    packages = Namespace(write(tmp_path / "packages", package))
    files = handler if installed else handler | package
    namespace = Namespace(write(tmp_path / "a", files), packages=packages)
    try:
        found = namespace.import_module("handler")
        assert found.again is found.taken["pkg.part"] is not found.anew
        assert {"pkg", "pkg.part"}.isdisjoint(sys.modules)
    finally:
        namespace.close()
        packages.close()


@pytest.mark.parametrize("two", ["import sys\n"], indirect=True)
def test_who_goes_through_all_sees_its_own_modules_by_their_bare_names(
    two: list[types.ModuleType],
) -> None:
    one, other = two
    with other.namespace.activate():
        importlib.import_module("shared")
    modules = one.sys.modules
    modules["kt_net"] = one.model
    own = {name: module for name, module in modules.items() if name not in sys.modules}
    assert own == {"handler": one, "model": one.model, "kt_net": one.model}
    assert modules.copy()[one.__name__] is one
    assert {name: modules[name] for name in own} == own
    assert modules.copy()["__main__"] is one.namespace.main
    assert "shared" in sys.modules
    assert "shared" not in modules
    assert not [name for name in modules if other.namespace.name in name]
    with mock.patch.dict(modules, {"kt_other": one.model}):
        assert modules["kt_other"] is one.model
    assert "kt_other" not in modules
    assert modules["kt_net"] is one.model
