import builtins
import io
import pickle
import py_compile
import signal
import sys
import types
import typing
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from unittest import mock

import pytest
import torch

from kserve_torch.namespace.loader import Namespace

from ..makers import write
from .conftest import READ
from .made import Make
from .test_loader import in_thread

IN_MAIN = [
    "import __main__\nsetattr(__main__, 'Net', model.Net)\n",
    "import __main__ as m\nm.Net = model.Net\n",
    "import sys\nsys.modules['__main__'].Net = model.Net\n",
    "import importlib\nimportlib.import_module('__main__').Net = model.Net\n",
    "from sys import modules\nmodules['__main__'] = model\n",
]
IN_MODULES = [
    "import sys\nsys.modules['kt_net'] = model\n",
    "import sys, importlib\nsys.modules.update(kt_net=importlib.import_module('model'))\n",
]
WAYS = [*(("__main__", way) for way in IN_MAIN), *(("kt_net", way) for way in IN_MODULES)]


class Net:
    """Stands for a class of a training script."""


def pickled_in(module: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A ``Net`` as the script ``module`` has written it."""
    script = types.ModuleType(module)
    monkeypatch.setitem(sys.modules, module, script)
    monkeypatch.setattr(Net, "__module__", module)
    script.Net = Net
    written = io.BytesIO()
    torch.save(Net(), written)
    monkeypatch.undo()
    return written.getvalue()


@pytest.mark.parametrize(("name", "two"), WAYS, indirect=["two"])
def test_names_that_pickles_know_are_each_archives_own(
    two: list[types.ModuleType], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pickled_in(name, monkeypatch)
    plain = b"c" + name.encode() + b"\nNet\n(tR."
    for handler in two:
        net = handler.model.Net
        assert type(in_thread(lambda read=handler.read: read(io.BytesIO(plain)))) is net
        with handler.namespace.activate():
            assert type(handler.load(io.BytesIO(data), weights_only=False)) is net
            assert type(pickle.loads(plain)) is net  # a library's own unpickler
    with pytest.raises(AttributeError):
        pickle.loads(plain)


def test_another_module_may_take_the_place_of_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"model.py": "class Net: pass\n", "handler.py": f"import model\n{IN_MAIN[0]}"})
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    namespace = Namespace(tmp_path)
    net = namespace.import_module("handler").model.Net
    with namespace.activate():
        assert type(pickle.loads(b"c__main__\nNet\n(tR.")) is net


IN_BOTH = "import __main__\nclass Net: pass\n__main__.Net = Net\n"


@pytest.mark.parametrize("two", [IN_BOTH], indirect=True)
def test_a_name_in_main_is_not_that_of_another_module(two: list[types.ModuleType]) -> None:
    one = two[0]
    assert one.pickle.loads(b"c__main__\nNet\n.") is one.Net is not one.model.Net
    assert one.pickle.loads(b"cmodel\nNet\n.") is one.model.Net
    with one.namespace.activate():
        assert sys.modules["__main__"].Net is one.Net
        assert not hasattr(sys.modules["__main__"], "kt_absent")
    assert not hasattr(sys.modules["__main__"], "Net")


def test_what_one_instance_pickles_is_known_to_another_one(two: list[types.ModuleType]) -> None:
    one, other = two
    written = one.pickle.dumps([one.model.Net(), one.model.Net])
    for _ in range(2):
        instance, kind = other.pickle.loads(written)
        assert type(instance) is kind is other.model.Net
        one.namespace.close()


WAYS_TO_RUN = [
    """import sys, importlib.util as u
spec = u.spec_from_file_location("kt_run", "src/run.py")
run = u.module_from_spec(spec)
sys.modules[spec.name] = run
spec.loader.exec_module(run)
""",
    """import sys, importlib.util
spec = importlib.util.spec_from_file_location("kt_run", "src/run.py")
run = spec.loader.load_module()
""",
    """import sys, os
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
loader = SourceFileLoader("kt_run", os.path.abspath("src/run.py"))
run = module_from_spec(spec_from_loader("kt_run", loader))
sys.modules["kt_run"] = run
loader.exec_module(run)
""",
    """import sys
from importlib.machinery import SourceFileLoader
run = SourceFileLoader("kt_run", "src/run.py").load_module()
""",
    """import sys
from importlib.machinery import SourcelessFileLoader
run = SourcelessFileLoader("kt_run", "src/run.pyc").load_module()
""",
]
if sys.version_info < (3, 12):
    WAYS_TO_RUN += [
        """import sys, imp
run = imp.load_source("kt_run", "src/run.py")
""",
        """import sys, imp
with open("src/run.py") as file:
    run = imp.load_module("kt_run", file, "src/run.py", (".py", "r", imp.PY_SOURCE))
""",
        """import sys, imp
run = imp.load_compiled("kt_run", "src/run.pyc")
""",
    ]
RUNS = """from __future__ import annotations
import dataclasses, typing, shared
@dataclasses.dataclass
class Net:
    x: int = 1
    y: typing.ClassVar[int] = 2
"""


@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:the imp module:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS_TO_RUN)
def test_modules_run_from_files_are_each_archives_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    files = {"handler.py": READ + way, "model.py": "", "shared.py": "", "src/run.py": RUNS}
    one, two = (Namespace(write(tmp_path / name, files)) for name in ("a", "b"))
    for namespace in (one, two):
        file = namespace.root / "src/run.py"
        py_compile.compile(str(file), cfile=f"{file}c")
    data = pickled_in("kt_run", monkeypatch)
    try:
        with one.loading():
            first = one.import_module("handler")
        with two.loading():
            second = two.import_module("handler")
        for namespace, handler in ((one, first), (two, second)):
            assert handler.run is namespace.import_module("kt_run")
            assert handler.run.shared is namespace.import_module("shared")
            with namespace.activate():
                found = handler.load(io.BytesIO(data), weights_only=False)
                assert type(found) is type(pickle.loads(pickle.dumps(found))) is handler.run.Net
            assert typing.get_type_hints(handler.run.Net)["x"] is int
    finally:
        one.close()
        two.close()


OWN_NAMES = [
    ("kt_run", "{}.kt_run", False),
    ("src.run", "{}.src.run", False),
    ("kt_absent.run", "kt_absent.run", True),
    ("__main__", "__main__", False),
]


@pytest.mark.parametrize(("name", "becomes", "is_everybodys"), OWN_NAMES)
def test_names_of_modules_run_from_files(
    tmp_path: Path, name: str, becomes: str, is_everybodys: bool
) -> None:
    text = WAYS_TO_RUN[0].replace('"kt_run"', repr(name))
    one = Namespace(write(tmp_path, {"handler.py": text, "src/run.py": "", "shared.py": ""}))
    try:
        with one.loading():
            handler = one.import_module("handler")
        assert handler.run.__name__ == handler.spec.name == becomes.format(one.name)
        assert handler.sys.modules[name] is one.import_module(name) is handler.run
        assert (sys.modules.get(name) is handler.run) is is_everybodys
    finally:
        one.close()
        sys.modules.pop("kt_absent.run", None)


AGAIN = """from .part import NAME
from .anew import again
"""
ANEW = """import os
from importlib.util import module_from_spec, spec_from_file_location
def run():
    folder = os.path.dirname(__file__)
    spec = spec_from_file_location(
        "kt_again", folder + "/__init__.py", submodule_search_locations=[folder]
    )
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
again = None
again = run()
"""


def test_a_package_that_runs_itself_anew_is_not_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 4 does; for it the handler's package and the server's may be two versions."""
    site = write(tmp_path / "site", {"kt_again/__init__.py": "", "kt_again/part.py": "N = 1"})
    monkeypatch.syspath_prepend(site)
    import kt_again.part

    files = {"__init__": AGAIN, "part": "NAME = 2", "anew": ANEW}
    files = {f"kt_again/{name}.py": text for name, text in files.items()}
    packages = Namespace(write(tmp_path / "packages", files))
    one = Namespace(write(tmp_path / "a", {"handler.py": "import kt_again"}), packages=packages)
    try:
        found = one.import_module("handler").kt_again
        assert (found.NAME, found.again.NAME) == (2, 2)
        assert sys.modules["kt_again"] is kt_again
    finally:
        one.close()
        packages.close()
        for name in ("kt_again", "kt_again.part"):
            del sys.modules[name]


@pytest.mark.parametrize("two", ["import sys\n"], indirect=True)
def test_the_rest_of_sys_is_the_processs(
    two: list[types.ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["a"])
    two[0].sys.argv = ["b"]
    assert two[1].sys.argv is sys.argv == ["b"]
    assert two[0].sys.path is sys.path
    with mock.patch.object(two[0].sys, "argv", ["c"]):
        assert sys.argv == ["c"]
    assert sys.argv == ["b"]


IN_BUILTINS = """import builtins, model
real = builtins.print
def _print(text): return [text]
builtins.print = _print
builtins.kt_traced = 1
def f(): return print("a"), kt_traced
"""


@pytest.mark.parametrize("two", [IN_BUILTINS], indirect=True)
def test_what_it_puts_into_builtins_is_seen_by_all_its_modules(
    two: list[types.ModuleType],
) -> None:
    one, other = two
    assert one.f() == (["a"], 1)
    assert eval("print('b'), kt_traced", vars(one.model)) == (["b"], 1)
    assert one.real is print is not one.builtins.print
    assert vars(one.builtins)["print"] is one.builtins.print
    assert vars(one.builtins)["len"] is len
    other.builtins.kt_traced = 2
    assert one.f() == (["a"], 1)
    assert vars(builtins)["kt_traced"] == 2
    assert one.builtins.kt_traced == 1
    del other.builtins.kt_traced
    assert not hasattr(builtins, "kt_traced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "kt_installed", 3, raising=False)
        assert other.builtins.kt_installed == 3
    with pytest.raises(AttributeError):
        del other.builtins.kt_traced


STAR = (
    "import sys, builtins, importlib, pickle, __main__\nfrom sys import *\nfound = argv, modules\n"
)


@pytest.mark.parametrize("two", [STAR], indirect=True)
def test_they_seem_to_be_the_modules_themselves(two: list[types.ModuleType]) -> None:
    one = two[0]
    assert one.found == (sys.argv, one.sys.modules)
    for name in ("sys", "builtins", "importlib", "pickle", "__main__"):
        lent, real = getattr(one, name), sys.modules[name]
        assert (lent.__spec__, lent.__doc__, repr(lent)) == (
            real.__spec__,
            real.__doc__,
            repr(real),
        )
        assert hasattr(lent, "__file__") == hasattr(real, "__file__")
        assert {*dir(real)} <= {*dir(lent)}
        assert pickle.loads(pickle.dumps(lent)) is real  # as a global of a function's, with joblib


SIGNALS = """
import signal
from signal import SIGINT
def set_all():
    return [signal.signal(number, print) for number in (signal.SIGTERM, SIGINT, signal.SIGHUP)]
def set_alarm():
    signal.signal(signal.SIGALRM, print)
"""


def test_handlers_of_signals_that_end_a_process_are_not_called(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """TorchServe kills its workers, so that nobody has seen theirs called."""
    handler = make(handler=SIGNALS).import_module("handler")
    before = signal.getsignal(signal.SIGTERM)
    assert in_thread(handler.set_all) == [signal.SIG_DFL] * 3
    assert signal.getsignal(signal.SIGTERM) is before
    assert "what a handler sets for SIGTERM is not called" in caplog.text
    with pytest.raises(ValueError, match="main thread"):
        in_thread(handler.set_alarm)


def test_the_main_thread_may_set_them(make: Make) -> None:
    handler = make(handler=SIGNALS).import_module("handler")
    before = {number: signal.getsignal(number) for number in (SIGTERM, SIGINT, SIGHUP)}
    try:
        assert handler.set_all() == [*before.values()]
        assert signal.getsignal(SIGTERM) is print
    finally:
        for number, own in before.items():
            signal.signal(number, own)
