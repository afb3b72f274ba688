"""Files that an archive brings, and the directory that its handler works in."""

import importlib
import os
import threading
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import psutil
import pytest

from kserve_torch.namespace import workdir
from kserve_torch.namespace.loader import Namespace

from ..makers import write
from .made import Make, in_thread

READER = """
def read():
    with open("words.txt") as file:
        return file.read()

def read_otherwise():
    import os
    return os.getcwd(), os.path.exists("words.txt")
"""


@pytest.mark.parametrize(
    "read",
    [
        "pkgutil.get_data(NAME, 'words.txt').decode()",
        "importlib.resources.files(NAME).joinpath('words.txt').read_text()",
    ],
)
@pytest.mark.parametrize("package", ["pkg", "pkg.sub"])
def test_data_files_of_packages(make: Make, tmp_path: Path, package: str, read: str) -> None:
    text = f"import importlib.resources, pkgutil\nNAME = {package!r}\ndef words(): return {read}\n"
    namespaces = [make(name, handler=text) for name in ("one", "two")]
    for namespace in namespaces:
        for folder in ("pkg", "pkg/sub"):
            (namespace.root / folder).mkdir()
            (namespace.root / folder / "__init__.py").write_text("")
            (namespace.root / folder / "words.txt").write_text(f"{namespace.root.name} {folder}")
    for namespace in (*namespaces, *namespaces):
        with namespace.activate():
            found = namespace.import_module("handler").words()
        assert found == f"{namespace.root.name} {package.replace('.', '/')}"


def test_other_code_gets_the_loader_of_an_archives_package(make: Make) -> None:
    """pkg_resources lists the files of a package only if it knows the loader's class."""
    namespaces = [make(name, kt_package="") for name in ("one", "two")]
    for namespace in (*namespaces, *namespaces):
        with namespace.activate():
            loader = importlib.import_module("kt_package").__loader__
            assert isinstance(loader, SourceFileLoader)
            assert loader.path == str(namespace.root / "kt_package.py")


def test_data_files_of_packages_in_a_zip_file(make: Make, tmp_path: Path) -> None:
    text = """
        import os, pkgutil, sys
        sys.path.insert(0, os.path.join(os.path.dirname(__file__), "deps.zip"))
        import zipped
        def words(): return pkgutil.get_data("zipped", "words.txt").decode()
        """
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with zipfile.ZipFile(tmp_path / name / "deps.zip", "w") as file:
            file.writestr("zipped/__init__.py", "")
            file.writestr("zipped/words.txt", name)
        assert in_thread(make(name, handler=text).import_module("handler").words) == name


def test_open_knows_the_models_files(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "one", {"words.txt": "one"})
    write(tmp_path / "two", {"words.txt": "two"})
    (tmp_path / "outside.txt").write_text("outside")
    for name in ("one", "two"):
        module = make(name, handler=READER + "opened = open").import_module("handler")
        assert module.read() == name
        with module.opened(tmp_path / "outside.txt", mode="r", encoding="utf-8") as file:
            assert file.read() == "outside"
        with pytest.raises(FileNotFoundError):
            module.opened("absent.txt")


def test_two_threads_have_two_directories(make: Make, tmp_path: Path) -> None:
    if not in_thread(workdir._unshare):
        pytest.skip("no directories per thread on this system")
    before = os.getcwd()
    inside = threading.Barrier(2)

    def work(name: str) -> tuple[str, bool]:
        write(tmp_path / name, {"words.txt": name})
        namespace = make(name, handler=READER)
        namespace.enter_thread()
        with namespace.loading():
            handler = namespace.import_module("handler")
            inside.wait(10)
        return handler.read_otherwise()

    results: dict[str, Any] = {}
    threads = [
        threading.Thread(target=lambda name=name: results.update({name: work(name)}))
        for name in ("one", "two")
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert results == {name: (str(tmp_path / name), True) for name in ("one", "two")}
    assert os.getcwd() == before


CHANGED = """
import os, threading
def read(found):
    with open("words.txt") as file:
        found.append(file.read())
def both():
    found = []
    read(found)
    thread = threading.Thread(target=read, args=[found])
    thread.start()
    thread.join()
    return found
def work(scratch):
    found = both()
    os.chdir("sub")
    found += both()
    os.chdir(scratch)
    with open("words.txt", "w") as file:
        file.write("scratch")
    return found + both()
"""


def test_open_follows_a_handler_that_changes_its_directory(make: Make, tmp_path: Path) -> None:
    if not in_thread(workdir._unshare):
        pytest.skip("no directories per thread on this system")
    (tmp_path / "scratch").mkdir()
    write(tmp_path / "one", {"words.txt": "root", "sub/words.txt": "sub"})
    namespace = make("one", handler=CHANGED)

    def work() -> list[str]:
        namespace.enter_thread()
        return list(namespace.import_module("handler").work(tmp_path / "scratch"))

    assert in_thread(work) == ["root"] * 2 + ["sub"] * 2 + ["scratch"] * 2
    assert (tmp_path / "one/words.txt").read_text() == "root"


def test_without_directories_per_thread_loading_still_has_one(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workdir, "_unshare", lambda: False)
    monkeypatch.setattr(workdir, "_home", None)
    monkeypatch.setattr(workdir, "_explained", threading.Event())
    before, files = os.getcwd(), psutil.Process().num_fds()
    namespace = make("one", handler=READER)

    def load() -> str:
        namespace.enter_thread()
        with namespace.loading():
            return os.getcwd()

    assert in_thread(load) == str(tmp_path / "one")
    assert (os.getcwd(), psutil.Process().num_fds()) == (before, files)
    assert caplog.text.endswith("relative paths lead to a model's files with open() only\n")


def test_without_directories_per_thread_a_server_works_in_that_of_the_only_model(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workdir, "_unshare", lambda: False)
    monkeypatch.setattr(workdir, "_home", None)
    monkeypatch.setattr(workdir, "_explained", threading.Event())
    monkeypatch.setattr(workdir, "_common", None)
    monkeypatch.chdir(tmp_path)
    workdir.follow_models()
    workdir.gather_in(tmp_path / "all")

    def begin(name: str) -> Namespace:
        namespace = make(name, handler=READER)

        def load() -> None:
            namespace.enter_thread()
            with namespace.loading():
                assert os.getcwd() == str(tmp_path / name)

        in_thread(load)
        return namespace

    one, its_second_worker = begin("one"), begin("one")
    assert os.getcwd() == str(tmp_path / "one")
    assert "share" not in caplog.text
    two = begin("two")
    begin("two").close()
    assert os.getcwd() == str(tmp_path / "all")
    assert caplog.text.count("with open() only while there is more than one model") == 1
    one.close()
    assert os.getcwd() == str(tmp_path / "all")
    its_second_worker.close()
    assert os.getcwd() == str(tmp_path / "two")
    three = begin("three")
    assert os.getcwd() == str(tmp_path / "all")
    three.close()
    assert os.getcwd() == str(tmp_path / "two")
    two.close()
    assert os.getcwd() == str(tmp_path)


def test_a_load_that_hangs_in_the_shared_directory_keeps_nobody_out(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workdir, "_unshare", lambda: False)
    monkeypatch.setattr(workdir, "PATIENCE", 0.05)
    monkeypatch.setattr(workdir, "_home", os.getcwd())
    write(tmp_path / "two", {"words.txt": "two"})
    hangs, other = make("one", handler=READER), make("two", handler=READER)
    inside, done = threading.Event(), threading.Event()

    def hang() -> None:
        with hangs.loading():
            inside.set()
            done.wait(30)

    def load() -> str:
        other.enter_thread()
        with other.loading():
            return str(other.import_module("handler").read())

    thread = threading.Thread(target=hang)
    thread.start()
    try:
        assert inside.wait(10)
        assert in_thread(load) == "two"
        assert "loads without its working directory" in caplog.text
        other.close()
        assert thread.is_alive()
    finally:
        done.set()
        thread.join()
