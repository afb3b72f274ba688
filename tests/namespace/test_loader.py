import gc
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import os
import pickle
import py_compile
import shutil
import sys
import textwrap
import threading
import types
import weakref
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from kserve_torch.errors import LoadFailed
from kserve_torch.namespace import workdir
from kserve_torch.namespace.loader import Namespace
from kserve_torch.namespace.scopes import thread
from kserve_torch.runtime.entry import load_entry

from ..forks import Forks
from ..makers import ECHO, write

Make = Callable[..., Namespace]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes a namespace of a folder with the given files; all are closed at the end."""
    made: list[Namespace] = []

    def make_one(name: str = "a", /, packages: Namespace | None = None, **files: str) -> Namespace:
        contents = {
            key.replace("__slash__", "/") + ".py": textwrap.dedent(text)
            for key, text in files.items()
        }
        made.append(Namespace(write(tmp_path / name, contents), packages=packages))
        return made[-1]

    yield make_one
    for namespace in made:
        namespace.close()
    ours = {namespace.name for namespace in made}
    assert not [name for name in sys.modules.copy() if name.partition(".")[0] in ours]


def in_thread(work: Callable[[], Any]) -> Any:
    """The result of ``work`` on a fresh thread, or what it raised."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


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


def test_extension_modules(make: Make, tmp_path: Path) -> None:
    import _ctypes_test as extension  # any small extension that nobody else has loaded

    write(tmp_path / "a", {Path(extension.__file__).name: Path(extension.__file__).read_bytes()})
    del sys.modules["_ctypes_test"]
    module = make(handler="import _ctypes_test as e\n").import_module("handler")
    assert Path(module.e.__file__).parent == tmp_path / "a"


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


def test_compiled_modules_beside_the_servers_package(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would import the server's modules; pydantic 1 brings the source of all of its own."""
    site = write(tmp_path / "site", {"kt_both/__init__.py": "X = 1"})
    text = "import kt_both.part as part"
    one = make("one", handler=text, kt_both__slash____init__="", kt_both__slash__part="X = 2")
    broken = one.root / f"kt_both/part{EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"")
    with pytest.raises(ImportError) as caught:
        one.import_module("handler")
    assert "environment" not in str(caught.value)
    monkeypatch.syspath_prepend(site)
    assert one.import_module("handler").part.X == 2
    (one.root / "kt_both/part.py").unlink()
    two = make("one", handler=text)
    with pytest.raises(ImportError, match="environment has a package kt_both too, and compiled"):
        two.import_module("handler")


def test_a_compiled_module_that_imports_the_servers_package(
    make: Make, forks: Forks, tmp_path: Path
) -> None:
    """PyYAML's: with it, objects of the archive's yaml would be none for the server's, and load."""
    import yaml

    if not yaml.__with_libyaml__:
        pytest.skip("PyYAML is not compiled here")
    shutil.copytree(Path(yaml.__file__).parent, tmp_path / "yaml")
    printed = forks.run(f"""
import pathlib, yaml
from kserve_torch.namespace.loader import Namespace
one = Namespace(pathlib.Path({str(tmp_path)!r}))
own = one.import_module("yaml")
print(own is yaml, own.__with_libyaml__, own.safe_load("a: 1"))
try:
    one.import_module("yaml._yaml")
except ImportError as error:
    print(error)
""")
    assert printed == (
        "False False {'a': 1}\n"
        "yaml._yaml has imported another yaml "
        "(the environment has a package yaml too, and compiled modules may get that one)\n"
    )


def test_compiled_modules_that_enter_themselves_by_their_bare_names(
    forks: Forks, tmp_path: Path
) -> None:
    """Cython's do, and import each other by those: pycocotools, pyarrow, lxml, h5py."""
    httptools = importlib.util.find_spec("httptools")
    assert httptools is not None
    assert httptools.origin is not None
    shutil.copytree(Path(httptools.origin).parent, tmp_path / "httptools")
    printed = forks.run(f"""
import pathlib, sys
from kserve_torch.namespace.loader import Namespace
for name in [name for name in sys.modules if name.startswith("httptools")]:
    del sys.modules[name]
one, two = (Namespace(pathlib.Path({str(tmp_path)!r})) for _ in range(2))
for each in (one, two):
    compiled = each.import_module("httptools.parser.parser")
    print(compiled.HttpRequestParser.__module__)
print([name for name in sys.modules if name.startswith("httptools")])
""")
    assert printed == "httptools.parser.parser\n" * 2 + "[]\n"


@pytest.fixture
def as_cython(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of compiled modules hold Python here, and enter themselves by their bare names."""
    create, run = ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module

    def is_here(loader: ExtensionFileLoader) -> bool:
        return Path(loader.path).is_relative_to(tmp_path)

    def create_here(loader: ExtensionFileLoader, spec: ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name) if is_here(loader) else create(loader, spec)

    def run_here(loader: ExtensionFileLoader, module: types.ModuleType) -> None:
        if not is_here(loader):
            run(loader, module)
            return
        sys.modules.setdefault(loader.name.partition(".")[2], module)
        exec(Path(loader.path).read_text(), vars(module))

    monkeypatch.setattr(ExtensionFileLoader, "create_module", create_here)
    monkeypatch.setattr(ExtensionFileLoader, "exec_module", run_here)


@pytest.mark.usefixtures("as_cython")
def test_compiled_modules_that_make_what_they_miss(make: Make, tmp_path: Path) -> None:
    """Mypyc's: plum's, and so all of fastai, had two classes Method."""
    text = "import sys\nfirst = sys.modules['kt_native.first']\n"
    text += "sys.modules['kt_native.late'] = type(sys)('kt_native.late')"
    suffix = EXTENSION_SUFFIXES[0]
    files = {"__init__.py": "", f"first{suffix}": "", f"user{suffix}": text}
    write(tmp_path / "a/kt_native", files)
    namespace = make()
    first = namespace.import_module("kt_native.first")
    user = namespace.import_module("kt_native.user")
    assert user.first is first
    assert namespace.import_module("kt_native.late").__name__ == "kt_native.late"
    assert not [name for name in sys.modules if name.startswith("kt_native")]


@pytest.mark.usefixtures("as_cython")
def test_compiled_modules_that_import_each_other(make: Make, tmp_path: Path) -> None:
    """In a circle, as spaCy's do: the first one is there by its bare name while it is loaded."""
    first = "class Net: __module__ = 'kt_circle.first'\nimport kt_circle.other"
    other = "from kt_circle.first import Net"
    files = {
        "__init__.py": "",
        f"first{EXTENSION_SUFFIXES[0]}": first,
        f"other{EXTENSION_SUFFIXES[0]}": other,
    }
    write(tmp_path / "a/kt_circle", files)
    namespace = make()
    with namespace.activate():
        net = namespace.import_module("kt_circle.first").Net
        assert namespace.import_module("kt_circle.other").Net is net


@pytest.mark.parametrize("folder", ["", "inside/"])
def test_compiled_modules_are_loaded_once_and_by_their_bare_name(
    forks: Forks, tmp_path: Path, folder: str
) -> None:
    """OpenCV's refuses other names; onnx's has modules below it, and loaded twice is the end."""
    onnx = importlib.util.find_spec("onnx")
    assert onnx is not None
    assert onnx.origin is not None
    (file,) = Path(onnx.origin).parent.glob("onnx_cpp2py_export.*")
    (tmp_path / "inside").mkdir()
    (tmp_path / folder / file.name).symlink_to(file)
    name = f"{folder}onnx_cpp2py_export".replace("/", ".")
    printed = forks.run(f"""
import pathlib, sys
from kserve_torch.namespace.loader import Namespace
one, two = (Namespace(pathlib.Path({str(tmp_path)!r})) for _ in range(2))
servers = sys.modules["onnx_cpp2py_export.defs"] = type(sys)("servers")
compiled, below = map(one.import_module, ({name!r}, "{name}.defs"))
print(compiled.__name__.removeprefix(one.name + "."), below is compiled.defs)
print(two.import_module({name!r}) is compiled, two.import_module("{name}.defs") is below)
print(sys.modules.pop("onnx_cpp2py_export.defs") is servers, [*vars(servers)][5:])
tops = {{name.partition(".")[0] for name in sys.modules if "cpp2py" in name}}
print(tops == {{one.name, two.name}}, compiled.__name__ == {name!r})
""")
    assert printed == f"{name} True\nTrue True\nTrue []\nTrue {not folder}\n"


def test_ts_is_ours_for_everybody(make: Make) -> None:
    make(handler="")
    import kserve_torch.ts.context

    assert importlib.import_module("ts.context") is kserve_torch.ts.context
    assert kserve_torch.ts.context.__spec__.name == "kserve_torch.ts.context"
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'ts\.absent_thing'$"):
        importlib.import_module("ts.absent_thing")


# --- pickles --------------------------------------------------------------------------------------

NET = "class Net:\n    def __init__(self):\n        self.a = 1\n"


def pickled_by_bare_name(make: Make) -> bytes:
    module = make("origin", model=NET).import_module("model")
    data = pickle.dumps(module.Net(), protocol=2)
    return data.replace(module.__name__.encode(), b"model")


def test_pickles_with_bare_names(make: Make) -> None:
    data = pickled_by_bare_name(make)
    one, two = make("one", model=NET), make("two", model=NET)
    for namespace in (one, two):
        found = namespace.pickle_module.load(io.BytesIO(data))
        assert type(found) is namespace.import_module("model").Net


@pytest.mark.parametrize(
    "read",
    [
        "import pickle\ndef read(file): return pickle.load(file)",
        "import pickle as p\ndef read(file): return p.loads(file.read())",
        "from pickle import load as read",
        "from pickle import *\ndef read(file): return loads(file.read())",
        "import pickle\nclass Own(pickle.Unpickler): pass\ndef read(file): return Own(file).load()",
    ],
)
def test_the_archives_code_unpickles_its_classes_in_any_thread(make: Make, read: str) -> None:
    data = pickled_by_bare_name(make)
    for name in ("one", "two"):
        namespace = make(name, handler=read, model=NET)
        handler = namespace.import_module("handler")
        found = in_thread(lambda read=handler.read: read(io.BytesIO(data)))
        assert type(found) is namespace.import_module("model").Net


def test_the_archives_pickle_is_pickle(make: Make) -> None:
    text = "import pickle\nfrom pickle import _Unpickler, PickleError, HIGHEST_PROTOCOL, dumps"
    module = make(handler=text).import_module("handler")
    assert module.PickleError is module.pickle.PickleError is pickle.PickleError
    assert module.pickle.loads(module.dumps([1], module.HIGHEST_PROTOCOL), encoding="ascii") == [1]
    with pytest.raises(pickle.UnpicklingError):
        module.pickle.loads(b"nothing")


def test_unpicklers_that_know_nothing_of_us(make: Make) -> None:
    data = pickled_by_bare_name(make)
    one, two = make("one", model=NET), make("two", model=NET)
    for namespace in (one, two, one):
        with namespace.activate():
            assert type(pickle.loads(data)) is namespace.import_module("model").Net
    with pytest.raises(AttributeError, match="model is a module of an archive that is not active"):
        importlib.import_module("model").Net()
    one.close()
    with pytest.raises(ModuleNotFoundError):
        pickle.loads(data)


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


def test_who_looks_through_all_modules_imports_none(make: Make) -> None:
    data = pickled_by_bare_name(make)
    one, two = make("one", model=NET), make("two", model="raise MemoryError")
    with one.activate():
        pickle.loads(data)
    for namespace in (two, make("three", handler="")):
        with namespace.activate():
            assert not hasattr(sys.modules["model"], "__file__")
            assert inspect.getmodule(inspect.currentframe()) is sys.modules[__name__]
    with make("four", handler="").activate(), pytest.raises(AttributeError, match="not active"):
        sys.modules["model"].Net()


def test_full_models_in_torch_files(make: Make, tmp_path: Path) -> None:
    text = "import torch\nclass Net(torch.nn.Linear): pass\n"
    origin = make("origin", model=text).import_module("model")
    sys.modules["model"] = origin
    origin.Net.__module__ = "model"
    torch.save(origin.Net(1, 1), tmp_path / "net.pt")
    del sys.modules["model"]
    namespace = make("one", model=text)
    options = {"weights_only": False, "pickle_module": namespace.pickle_module}
    found = torch.load(tmp_path / "net.pt", **options)
    assert type(found) is namespace.import_module("model").Net
    with namespace.activate():
        found = torch.load(tmp_path / "net.pt", weights_only=False)
    assert type(found) is namespace.import_module("model").Net


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


IN_C = """
import ctypes
get = ctypes.pythonapi.PyImport_ImportModule
get.argtypes, get.restype = [ctypes.c_char_p], ctypes.py_object
def f(): return get(b"pkg.leaf").X
"""


def test_imports_of_compiled_code(make: Make) -> None:
    """It looks in sys.modules, by the bare name, for what ``__import__`` has imported."""
    for number in (1, 2):
        files = {"pkg__slash____init__": "", "pkg__slash__leaf": f"X = {number}"}
        namespace = make(str(number), handler=IN_C, **files)
        handler = namespace.import_module("handler")
        assert in_thread(handler.f) == number
        with namespace.activate():
            assert handler.f() == number
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'pkg"):
        make("three", handler=IN_C).import_module("handler").f()


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


# --- files and working directories ----------------------------------------------------------------

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
        assert namespace.enter_thread()
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
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdir, "_unshare", lambda: False)
    monkeypatch.setattr(workdir, "_home", None)
    before = os.getcwd()
    namespace = make("one", handler=READER)

    def load() -> tuple[bool, str]:
        entered = namespace.enter_thread()
        with namespace.loading():
            return entered, os.getcwd()

    assert in_thread(load) == (False, str(tmp_path / "one"))
    assert os.getcwd() == before


def test_without_directories_per_thread_a_server_works_in_that_of_the_only_model(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workdir, "_unshare", lambda: False)
    monkeypatch.setattr(workdir, "_home", None)
    monkeypatch.setattr(workdir, "_explained", threading.Event())
    monkeypatch.chdir(tmp_path)
    workdir.follow_models()

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
    assert os.getcwd() == str(tmp_path)
    assert caplog.text.count("with open() only while there is more than one model") == 1
    one.close()
    assert os.getcwd() == str(tmp_path)
    its_second_worker.close()
    assert os.getcwd() == str(tmp_path / "two")
    two.close()
    assert os.getcwd() == str(tmp_path)


def test_a_load_that_hangs_in_the_shared_directory_keeps_nobody_out(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workdir, "_unshare", lambda: False)
    monkeypatch.setattr(workdir, "PATIENCE", 0.05)
    write(tmp_path / "two", {"words.txt": "two"})
    hangs, other = make("one", handler=READER), make("two", handler=READER)
    inside, done = threading.Event(), threading.Event()

    def hang() -> None:
        with hangs.loading():
            inside.set()
            done.wait(30)

    def load() -> str:
        with other.loading():
            return str(other.import_module("handler").read())

    thread = threading.Thread(target=hang)
    thread.start()
    try:
        assert inside.wait(10)
        assert in_thread(load) == "two"
        assert "loads without its working directory" in caplog.text
    finally:
        done.set()
        thread.join()


# --- entry points ---------------------------------------------------------------------------------

CLASS = """
class Handler:
    def initialize(self, context):
        self.context = context
    def handle(self, data, context):
        return data
"""


@pytest.mark.parametrize("handler", ["handler", "handler.py", "some/dir/handler.py"])
def test_a_function(make: Make, handler: str) -> None:
    entry = load_entry(make(handler=ECHO), handler)
    assert entry.initialize("context") is None
    assert entry.handle([{"data": 1}], None) == [1]


def test_a_named_function(make: Make) -> None:
    namespace = make(service="def run(data, context):\n    return [context]\n" + ECHO)
    assert load_entry(namespace, "service:run").initialize("context") == ["context"]
    assert load_entry(namespace, "service.py:run").handle([1], 2) == [2]


def test_the_function_goes_before_a_class(make: Make) -> None:
    entry = load_entry(make(handler=CLASS + ECHO), "handler")
    assert entry.handle([{"data": 1}], None) == [1]


def test_a_class(make: Make) -> None:
    text = f"from abc import ABC\nimport collections\n{CLASS}"
    entry = load_entry(make(handler=text), "handler:absent")
    entry.initialize("context")
    assert entry.service.context == "context"
    assert entry.handle([1], None) == [1]


def test_a_callable_attribute(make: Make) -> None:
    text = (
        "class H:\n    def __init__(self):\n        self.handle = Echo()\n    initialize = print\n"
    )
    other = "class Echo:\n    def __call__(self, data, context):\n        return data\n"
    namespace = make(handler="from other import Echo\n" + text, other=other)
    assert load_entry(namespace, "handler").handle([1], None) == [1]


TWO = """
class Base:
    def handle(self, data, context):
        return ["base"]

class Helper:
    pass
"""


@pytest.mark.parametrize(
    ("more", "handler", "result"),
    [
        ("", "handler.py", "base"),
        ("class Mine(Base):\n    def handle(self, *_): return ['mine']", "handler.py:Mine", "mine"),
        ("class Mine(Base):\n    def handle(self, *_): return ['mine']", "handler:Base", "base"),
    ],
)
def test_one_of_several_classes(make: Make, more: str, handler: str, result: str) -> None:
    assert load_entry(make(handler=TWO + more), handler).handle([1], None) == [result]


WANTED = (
    "handler.py: one function 'handle', exactly one class or a manifest that names one is wanted"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", f"{WANTED}, got none"),
        (
            "class A: pass\nclass B: pass",
            f"{WANTED}, got A, B",
        ),
        ("class A: pass", "the handler class A has no method 'handle'"),
        (
            "handle = 3",
            f"{WANTED}, got none",
        ),
    ],
)
def test_unclear_handlers(make: Make, text: str, reason: str) -> None:
    with pytest.raises(LoadFailed) as caught:
        load_entry(make(handler=text), "handler.py")
    assert caught.value.message == reason


@pytest.mark.parametrize(
    ("text", "found"),
    [("def predict(data, context): pass", "none"), ("class A: pass\nclass B: pass", "A, B")],
)
def test_what_a_manifest_names_and_the_file_lacks(make: Make, text: str, found: str) -> None:
    with pytest.raises(LoadFailed) as caught:
        load_entry(make(handler=text), "handler.py:infer")
    assert caught.value.message == (
        "handler.py: the manifest names 'infer', which it lacks; without it, exactly one class is "
        f"wanted, got {found}"
    )


@pytest.mark.parametrize("name", ["no_such_handler", "../x", "", "json.tool.x"])
def test_no_such_handler(make: Make, name: str) -> None:
    with pytest.raises(
        LoadFailed, match="is neither a file of the archive nor one of base_handler"
    ):
        load_entry(make(handler=""), name)


@pytest.mark.parametrize(
    ("name", "kind"), [("image_classifier", "ImageClassifier"), ("vision_handler", "VisionHandler")]
)
def test_stock_handlers(make: Make, name: str, kind: str) -> None:
    assert type(load_entry(make(other=""), name).service).__name__ == kind


def test_a_stock_handler_by_its_full_name(make: Make) -> None:
    entry = load_entry(make(other=""), "ts.torch_handler.image_classifier")
    assert type(entry.service).__name__ == "ImageClassifier"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package as if installed, with the module ``hnd``, and ``broken`` that lacks something."""
    package = tmp_path / "site" / "kt_installed"
    for name, text in {"__init__": "", "hnd": ECHO, "broken/__init__": "import absent_one"}.items():
        file = package / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("def handle", "def answer"))
    monkeypatch.syspath_prepend(package.parent)
    yield
    for name in [name for name in sys.modules.copy() if name.startswith("kt_installed")]:
        del sys.modules[name]


@pytest.mark.usefixtures("installed")
def test_a_handler_in_an_installed_package(make: Make) -> None:
    entry = load_entry(make(other=""), "kt_installed.hnd:answer")
    assert entry.handle([{"data": 1}], None) == [1]
    for absent in ("kt_installed.absent", "kt_installed.hnd.absent", "kt_installed.no.absent"):
        with pytest.raises(LoadFailed, match="is neither a file of the archive nor one of"):
            load_entry(make(other=""), absent)
    with pytest.raises(ModuleNotFoundError, match="absent_one"):
        load_entry(make(other=""), "kt_installed.broken.hnd")


def test_the_archives_file_goes_before_a_stock_handler(make: Make) -> None:
    entry = load_entry(make(image_classifier=ECHO), "image_classifier")
    assert entry.handle([{"data": 1}], None) == [1]


def test_a_missing_package_is_not_masked(make: Make) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'absent_package'$"):
        load_entry(make(image_classifier="import absent_package"), "image_classifier")


def test_subclasses_of_stock_handlers(make: Make) -> None:
    text = "from ts.torch_handler.base_handler import BaseHandler\nclass H(BaseHandler): pass"
    assert type(load_entry(make(handler=text), "handler").service).__name__ == "H"


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
