"""What archives' classes are found by in pickles."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import pickle
import sys
from pathlib import Path

import pytest
import torch

from .made import NET, Make, in_thread


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


def test_an_unpickler_keeps_what_it_has_found_while_another_archive_is_closed(make: Make) -> None:
    """It imports a module, and then takes it from ``sys.modules``."""
    one, two = make("one", kt_shared=NET), make("two", kt_shared=NET)
    for namespace in (one, two):
        with namespace.activate():
            importlib.import_module("kt_shared")
    found = sys.modules["kt_shared"]
    one.close()
    assert sys.modules["kt_shared"] is found
    two.close()
    assert "kt_shared" not in sys.modules


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
