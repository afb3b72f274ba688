"""Compiled modules that an archive brings."""

import importlib
import importlib.metadata
import importlib.util
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from ..forks import Forks
from ..makers import write
from .made import Make, in_thread


def test_extension_modules(make: Make, tmp_path: Path) -> None:
    import _ctypes_test as extension  # any small extension that nobody else has loaded

    write(tmp_path / "a", {Path(extension.__file__).name: Path(extension.__file__).read_bytes()})
    del sys.modules["_ctypes_test"]
    module = make(handler="import _ctypes_test as e\n").import_module("handler")
    assert Path(module.e.__file__).parent == tmp_path / "a"


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
