import gc
import importlib
import importlib.metadata
import importlib.util
import py_compile
import sys
import threading
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kserve_torch.namespace.loader import Namespace
from kserve_torch.namespace.scopes import thread

from ..makers import write
from .made import NET, Make, in_thread

# --- names ----------------------------------------------------------------------------------------


def test_two_archives_with_the_same_module_names(make: Make) -> None:
    handler = "import model\nfrom model import NAME\nfrom model import NAME as again\n"
    one = make("one", handler=handler, model="NAME = 'one'").import_module("handler")
    two = make("two", handler=handler, model="NAME = 'two'").import_module("handler")
    assert (one.NAME, one.model.NAME, one.again) == ("one", "one", "one")
    assert (two.NAME, two.model.NAME) == ("two", "two")
    assert "model" not in sys.modules
    assert "handler" not in sys.modules


def test_two_instances_of_one_archive_share_no_module(make: Make) -> None:
    one, two = make(handler="state = []"), make(handler="state = []")
    one.import_module("handler").state.append(1)
    assert two.import_module("handler").state == []


def test_imports_inside_functions_work_later_and_in_any_thread(make: Make) -> None:
    handler = """
        def f():
            import late
            from late import NAME
            return late.NAME, NAME
        """
    one = make("one", handler=handler, late="NAME = 1").import_module("handler")
    two = make("two", handler=handler, late="NAME = 2").import_module("handler")
    assert in_thread(one.f) == (1, 1)
    assert in_thread(two.f) == (2, 2)


def test_libraries_find_modules_by_name_on_threads_that_a_handler_starts(make: Make) -> None:
    handler = """
        import pkgutil
        def f():
            return pkgutil.resolve_name("late:NAME")
        """
    namespaces = [make(name, handler=handler, late=f"NAME = {name!r}") for name in ("one", "two")]
    found = [in_thread(namespace.import_module("handler").f) for namespace in namespaces]
    assert found == ["one", "two"]


PACKAGE = {
    "pkg__slash____init__": "",
    "pkg__slash__sub__slash____init__": "from . import leaf\nfrom .leaf import X as Y\n",
    "pkg__slash__sub__slash__leaf": "X = 7\nfrom ..other import Z\n",
    "pkg__slash__other": "Z = 8\n",
}


@pytest.mark.parametrize(
    ("statement", "expression", "value"),
    [
        ("import pkg.sub.leaf", "pkg.sub.leaf.X", 7),
        ("import pkg.sub.leaf as m", "m.X", 7),
        ("from pkg.sub import leaf", "leaf.X", 7),
        ("from pkg.sub.leaf import X", "X", 7),
        ("from pkg.sub import *", "Y", 7),
        ("from .pkg.sub import leaf", "leaf.Z", 8),
        ("from . import pkg", "pkg.__name__.endswith('.pkg')", True),
        ("m = __import__('pkg.sub.leaf')", "m.sub.leaf.X", 7),
        ("m = __import__('pkg.sub', fromlist=['leaf'])", "m.leaf.X", 7),
        ("import importlib", "importlib.import_module('pkg.sub').Y", 7),
        ("from importlib import import_module as i", "i('.sub', 'pkg') is i('pkg.sub')", True),
        ("import importlib.util", "importlib.util.find_spec('json').name", "json"),
        ("import importlib.util as u", "u.find_spec('json').name", "json"),
        ("from importlib.util import find_spec", "find_spec('json').name", "json"),
        ("import importlib, pkg", "importlib.reload(pkg) is pkg", True),
        ("import os.path", "os.path.sep", "/"),
        ("exec('import pkg.other')", "pkg.other.Z", 8),
        ("import sys", "sys.modules[__name__].sys is sys", True),
        ("import ts.context", "ts.context.Context.__name__", "Context"),
        (
            "from ts.utils.util import PredictionException as P",
            "P.__module__[:13]",
            "kserve_torch.",
        ),
    ],
)
def test_forms_of_import(make: Make, statement: str, expression: str, value: Any) -> None:
    module = make(handler=f"{statement}\nresult = {expression}\n", **PACKAGE)
    assert module.import_module("handler").result == value


def test_classes_know_their_module(make: Make) -> None:
    text = "from os import PathLike\nclass Net: pass\n"
    module = make(model=text).import_module("model")
    assert [
        c for c in vars(module).values() if getattr(c, "__module__", "") == module.__name__
    ] == [module.Net]
    assert sys.modules[module.Net.__module__] is module


def test_an_absent_module_is_named_by_its_bare_name(make: Make) -> None:
    namespace = make(handler="import absent_package")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'absent_package'$"):
        namespace.import_module("handler")
    namespace = make(handler="import pkg.absent", **PACKAGE)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'pkg\.absent'$") as caught:
        namespace.import_module("handler")
    assert caught.value.name == "pkg.absent"


def test_a_folder_does_not_hide_an_installed_package(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "a", {"yaml/tokens.txt": "", "data/x.py": "X = 1"})
    namespace = make(handler="import yaml\nimport data.x\nresult = yaml.safe_load, data.x.X")
    assert namespace.import_module("handler").result[1] == 1


def test_a_folder_goes_before_one_that_is_on_the_servers_path(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "cwd", {"models/model-store/m.mar": "", "other/there.py": "X = 2"})
    monkeypatch.syspath_prepend(tmp_path / "cwd")
    write(tmp_path / "a", {"models/net.py": "X = 1"})
    namespace = make(handler="import models.net, other.there\nresult = models.net.X, other.there.X")
    assert namespace.import_module("handler").result == (1, 2)
    sys.modules.pop("other.there")
    sys.modules.pop("other")


def test_a_loaded_standard_module_goes_before_the_archive(make: Make) -> None:
    namespace = make(handler="import json\nresult = json.dumps(1)", json="", sys="")
    assert namespace.import_module("handler").result == "1"
    assert namespace.full_name("sys") is None


def test_modules_that_appear_while_running_are_found(make: Make, tmp_path: Path) -> None:
    handler = make(handler="def f():\n    import unzipped\n    return unzipped.X\n").import_module(
        "handler"
    )
    with pytest.raises(ModuleNotFoundError):
        handler.f()
    (tmp_path / "a/unzipped.py").write_text("X = 1")
    importlib.invalidate_caches()
    assert handler.f() == 1


def test_the_folder_of_the_handler_goes_first(tmp_path: Path) -> None:
    root = write(tmp_path / "m", {"src/util.py": "X = 'src'", "util.py": "X = 'root'"})
    namespace = Namespace(root, [root / "src", root])
    assert namespace.import_module("util").X == "src"
    namespace.close()


def test_nothing_is_written_into_the_archive(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # whatever the environment says
    make(handler="import pkg.sub", **PACKAGE).import_module("handler")
    assert not list(tmp_path.rglob("__pycache__"))


def test_compiled_modules(make: Make, tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("import other\nX = other.X")
    (tmp_path / "a").mkdir()
    py_compile.compile(str(source), cfile=str(tmp_path / "a/model.pyc"))
    assert make(other="X = 3").import_module("model").X == 3


def test_a_closed_namespace_imports_nothing_more(make: Make) -> None:
    namespace = make(handler="def f():\n    import other\n", other="")
    module = namespace.import_module("handler")
    namespace.close()
    make("b", handler="", other="")
    with pytest.raises(ImportError, match="cannot import 'other': the model is unloaded"):
        module.f()


def test_closing_frees_the_modules(make: Make) -> None:
    namespace = make(handler="class Big: pass\nbig = Big()")
    kind = type(namespace.import_module("handler").big)
    references = weakref.ref(kind)
    del kind
    namespace.close()
    gc.collect()
    assert references() is None


def test_packages_of_one_model(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "pkgs/demo-2.5.dist-info", {"METADATA": "Name: demo\nVersion: 2.5\n"})
    packages = make("pkgs", demo="import helper\nX = helper.X", helper="X = 'theirs'")
    text = "import demo, helper\nfrom importlib.metadata import version\nV = version('demo')"
    one = make("one", packages, handler=text, helper="X = 'mine'")
    with one.activate():
        module = one.import_module("handler")
    assert (module.demo.X, module.helper.X, module.V) == ("theirs", "mine", "2.5")
    two = make("two", packages, handler="import demo")
    assert two.import_module("handler").demo is module.demo
    with pytest.raises(ModuleNotFoundError):
        make("three", handler="import demo").import_module("handler")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("demo")


RENAMED = """
import importlib, sys
from importlib.machinery import ModuleSpec
class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == "demo.old" else None
    def create_module(self, spec):
        return importlib.import_module("demo.new")
    def exec_module(self, module):
        pass
class Old:
    def find_module(self, name, path=None):
        return None
sys.meta_path[:0] = [Old(), Finder()]
"""


@pytest.mark.filterwarnings("ignore:Old.find_spec:ImportWarning")
def test_packages_find_their_modules_by_old_names(make: Make) -> None:
    """With a finder of their own, as sentence-transformers does."""
    make("none")
    before = [*sys.meta_path]
    text = "import demo.new\nfrom demo import old\nimport demo.old as again"
    for _ in range(2):
        packages = make("pkgs", demo__slash____init__=RENAMED, demo__slash__new="")
        found = make("one", packages, handler=text).import_module("handler")
        assert found.old is found.again is found.demo.new
        assert found.demo.new is packages.import_module("demo.new")
        packages.close()
    assert sys.meta_path == before


def test_packages_ask_for_their_version_by_the_name_that_they_have(
    make: Make, tmp_path: Path
) -> None:
    write(tmp_path / "pkgs/demo-2.5.dist-info", {"METADATA": "Name: demo\nVersion: 2.5\n"})
    text = "from importlib.metadata import version\nV = version(__name__)"
    packages = make("pkgs", demo=text, bare=text)
    one = make("one", packages, handler="import demo", pytest=text)
    assert one.import_module("handler").demo.V == "2.5"
    with pytest.raises(importlib.metadata.PackageNotFoundError, match=r"found for bare$"):
        one.import_module("bare")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version(one.name)
    # TorchServe's workers see what is installed for all, whatever folder the module came from.
    assert pytest.__version__ == one.import_module("pytest").V


def test_versions_on_threads_that_a_handler_starts(make: Make, tmp_path: Path) -> None:
    write(tmp_path / "pkgs/pytest-2.5.dist-info", {"METADATA": "Name: pytest\nVersion: 2.5\n"})
    text = "from importlib.metadata import version\ndef f(): return version('pytest')"
    packages = make("pkgs", demo=text)
    one = make("one", packages, handler=text + "\nimport demo").import_module("handler")
    assert (in_thread(one.f), in_thread(one.demo.f)) == ("2.5", "2.5")
    assert importlib.metadata.version("pytest") == pytest.__version__


def test_a_package_imports_itself_by_the_first_part_of_its_name(make: Make) -> None:
    """Diffusers look for their pipelines in what they get."""
    part = "import importlib\ndef whole(): return importlib.import_module(__name__.split('.')[0])"
    files = {"kt_pkg__slash____init__": "", "kt_pkg__slash__part": part}
    namespace = make("a", handler=f"import kt_pkg.part\n{part}", **files)
    handler = namespace.import_module("handler")
    assert handler.kt_pkg.part.whole() is handler.kt_pkg
    assert handler.whole() is handler


LOCATES = """
import importlib, importlib.util, sys
def locate(name):
    found = [importlib.import_module(name).Net for _ in range(2)]
    exec(f"import {name}")
    assert importlib.util.find_spec(name) is not None
    return {*found, sys.modules[name].Net}
"""


def test_packages_import_the_modules_of_those_they_work_for(make: Make) -> None:
    """Hydra, for one, what a model's YAML names; others' are not there."""
    packages = make("packages", locator=LOCATES)
    text = "import locator"
    for name in ("one", "two"):
        user = make(name, packages, handler=text, nets__slash__net="class Net: pass")
        with user.activate():
            net = user.import_module("nets.net").Net
            assert user.import_module("handler").locator.locate("nets.net") == {net}
    other = make("other", packages, handler=text)
    with other.activate():
        locator = other.import_module("handler").locator
        assert "nets.net" not in locator.sys.modules
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'nets\.net'$"):
            locator.locate("nets.net")


def test_ts_is_ours_for_everybody(make: Make) -> None:
    make(handler="")
    import kserve_torch.ts.context

    assert importlib.import_module("ts.context") is kserve_torch.ts.context
    assert kserve_torch.ts.context.__spec__.name == "kserve_torch.ts.context"
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'ts\.absent_thing'$"):
        importlib.import_module("ts.absent_thing")


# --- pickles --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attempt", ["import model", "import model.x", "importlib.import_module('model')"]
)
def test_what_another_archive_brings_does_not_seem_to_be_there(make: Make, attempt: str) -> None:
    with make("one", model=NET).activate():
        importlib.import_module("model")
    text = f"import importlib\ntry:\n    {attempt}\n    HAS = True\n"
    absent = make("two", handler=text + "except ModuleNotFoundError:\n    HAS = False\n")
    assert absent.import_module("handler").HAS is False
    with absent.activate(), pytest.raises(ModuleNotFoundError, match=r"^No module named 'model'$"):
        absent.import_module("model")


def test_what_a_library_has_found_in_one_model_stays_there_for_it(make: Make) -> None:
    """transformers looks for accelerate once, and imports its modules later."""
    packages = make("pkgs", kt_extra__slash____init__="", kt_extra__slash__state="X = 1")
    one, two = make("one", packages, handler=""), make("two", handler="import kt_extra")
    with one.activate():
        importlib.import_module("kt_extra")
    with two.activate():
        assert importlib.util.find_spec("kt_extra") is not None
        assert importlib.import_module("kt_extra.state").X == 1
    with pytest.raises(ModuleNotFoundError):
        two.import_module("handler")
    one.close()
    with two.activate():
        assert importlib.util.find_spec("kt_extra") is None


FIND = """
from importlib.util import LazyLoader, find_spec, module_from_spec
import sys
def origin(name): return (spec := find_spec(name)) and spec.origin
def later(name):
    spec = find_spec(name)
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""


def test_find_spec_finds_what_an_import_would(make: Make, tmp_path: Path) -> None:
    packages = make("pkgs", installed="", pytest="")
    one = make("one", packages, handler=FIND, model="X = 1", pkg__slash____init__="")
    two = make("two", handler=FIND)
    with one.activate():
        importlib.import_module("model")
    found, absent = one.import_module("handler"), two.import_module("handler")
    for name, folder in {"model": "one", "installed": "pkgs", "pytest": "pkgs"}.items():
        assert in_thread(lambda name=name: found.origin(name)) == f"{tmp_path / folder / name}.py"
    assert absent.origin("pytest") == pytest.__file__
    assert (absent.origin("model"), found.origin("pkg.absent")) == (None, None)
    assert found.later("model").X == 1 == one.import_module("model").X


def test_bare_names_of_packages(make: Make) -> None:
    namespace = make("one", **PACKAGE)
    with namespace.activate():
        assert importlib.import_module("pkg.sub.leaf").X == 7
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("pkg.absent")
    assert thread.scope is None


WALK = """
import pkgutil, pkg
def walk():
    found = [name for _, name, _ in pkgutil.walk_packages(pkg.__path__, "pkg.")]
    return found, [pkgutil.resolve_name(name).__file__ for name in found]
"""


def test_packages_are_walked_down(make: Make, tmp_path: Path) -> None:
    files = ["__init__", "sub/__init__", "sub/inner/__init__", "sub/inner/leaf", "sub/other"]
    for name in ("one", "two"):
        write(tmp_path / name, {f"pkg/{file}.py": "" for file in files})
        found, paths = in_thread(make(name, handler=WALK).import_module("handler").walk)
        assert found == ["pkg.sub", "pkg.sub.inner", "pkg.sub.inner.leaf", "pkg.sub.other"]
        assert paths == [f"{tmp_path / name}/pkg/{file}.py" for file in files[1:]]


def test_bare_names_below_packages_are_each_archives_own(make: Make) -> None:
    for name in ("one", "two"):
        files = {"pkg__slash____init__": "", "pkg__slash__leaf": f"X = {name!r}"}
        namespace = make(name, **files)
        with namespace.activate():
            code = {"__name__": "hubconf"}  # code that runs without the archive's __import__
            exec("import pkg.leaf\nY = pkg.leaf.X\nfrom pkg.leaf import *", code)
            assert (code["X"], code["Y"]) == (name, name)
    assert not hasattr(importlib.import_module("pkg.leaf"), "X")


def test_code_outside_sets_members_of_each_archives_own_modules(make: Make) -> None:
    for name in ("one", "two"):
        namespace = make(
            name, pkg__slash____init__="", pkg__slash__leaf="X = Y = 0\nsay = lambda: X"
        )
        leaf = namespace.import_module("pkg.leaf")
        with namespace.activate():
            code = {"__name__": "hubconf", "name": name}
            exec("import pkg.leaf\npkg.leaf.X = name\ndel pkg.leaf.Y", code)
            assert (leaf.say(), hasattr(leaf, "Y")) == (name, False)
            with mock.patch("pkg.leaf.X", "patched"):
                assert leaf.say() == "patched"
            assert leaf.say() == name
    assert not hasattr(importlib.import_module("pkg.leaf"), "X")


# --- entry points ---------------------------------------------------------------------------------


def test_names_of_closed_namespaces_are_not_used_again(tmp_path: Path) -> None:
    write(tmp_path, {"m.py": "x = 1"})
    names: list[str] = []
    failed: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(60):
                namespace = Namespace(tmp_path)
                names.append(namespace.name)
                assert namespace.import_module("m").x == 1
                namespace.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(6)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(usual)
    assert not failed
    assert len(set(names)) == len(names)
