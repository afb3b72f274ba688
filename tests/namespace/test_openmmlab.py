import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kserve_torch.namespace.loader import Namespace

from ..makers import write

#: What mmengine and mmcv 1 have of it.
REGISTRY = """
import inspect

class Registry:
    def __init__(self, parent=None):
        self._module_dict = {}
        self._children = {}
        self.scope = self.infer_scope()
        if parent is not None:
            assert self.scope not in parent._children
            parent._children[self.scope] = self

    @staticmethod
    def infer_scope():
        frame = inspect.currentframe().f_back.f_back
        return inspect.getmodule(frame).__name__.split(".")[0]

    def register(self, made):
        assert made.__name__ not in self._module_dict
        self._module_dict[made.__name__] = made

    def get(self, name):
        scope, dot, rest = name.partition(".")
        return self._children[scope].get(rest) if dot else self._module_dict.get(name)

MODELS = Registry()
"""
MANAGER = """
from collections import OrderedDict

class ManagerMeta(type):
    def __init__(cls, *args):
        cls._instance_dict = OrderedDict()
        super().__init__(*args)

class ManagerMixin(metaclass=ManagerMeta):
    @classmethod
    def get_instance(cls, name):
        return cls._instance_dict.setdefault(name, cls())

    @classmethod
    def names(cls):
        return list(reversed(cls._instance_dict))

    @classmethod
    def clear(cls):
        cls._instance_dict = OrderedDict()

class DefaultScope(ManagerMixin):
    pass
"""
LIBRARIES = {
    "mmengine/__init__.py": "",
    "mmengine/registry/__init__.py": "",
    "mmengine/registry/registry.py": REGISTRY,
    "mmengine/utils/__init__.py": "",
    "mmengine/utils/manager.py": MANAGER,
    "mmcv/__init__.py": "",
    "mmcv/utils/__init__.py": "",
    "mmcv/utils/registry.py": REGISTRY,
}
ARCHIVE = {
    "nets/__init__.py": "",
    "nets/registry.py": "from {library} import MODELS, Registry\nNETS = Registry(MODELS)\n",
    "handler.py": """
from {library} import MODELS
from mmengine.utils.manager import DefaultScope
from nets.registry import NETS

class Net:
    pass

NETS.register(Net)
MODELS.register(Net)

def found():
    return [NETS.scope, MODELS.get("nets.Net"), MODELS.get("Net")]

def switch(name):
    instance = DefaultScope.get_instance(name)
    return instance is DefaultScope.get_instance(name)

def names():
    return DefaultScope.names()

def clear():
    DefaultScope.clear()
""",
}

Make = Callable[..., tuple[Namespace, ModuleType]]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes an instance of the archive ``name``, whose handler uses ``library``."""
    monkeypatch.syspath_prepend(write(tmp_path / "lib", LIBRARIES))
    made = []

    def new(name: str, library: str = "mmengine.registry.registry") -> tuple[Namespace, ModuleType]:
        files = {file: text.replace("{library}", library) for file, text in ARCHIVE.items()}
        namespace = Namespace(write(tmp_path / name, files))
        made.append(namespace)
        with namespace.loading():
            return namespace, namespace.import_module("handler")

    yield new
    for namespace in made:
        namespace.close()
    for module in [name for name in sys.modules if name.partition(".")[0] in ("mmengine", "mmcv")]:
        del sys.modules[module]


@pytest.mark.parametrize("library", ["mmengine.registry.registry", "mmcv.utils.registry"])
def test_each_instance_adds_a_registry_of_its_own_by_its_package(make: Make, library: str) -> None:
    handlers = [make(name, library)[1] for name in ("a", "a", "b")]
    for handler in handlers:
        assert handler.found() == ["nets", handler.Net, handler.Net]
    root = sys.modules[library].MODELS
    assert root.scope == "mmengine" if library.startswith("mmengine") else "mmcv"


def test_a_reload_makes_its_registry_anew(make: Make) -> None:
    first, _ = make("a")
    first.close()
    _, handler = make("a")
    assert handler.found() == ["nets", handler.Net, handler.Net]


def test_each_instance_has_its_own_default_scope(make: Make) -> None:
    one, two = make("a"), make("a")
    for (namespace, handler), name in ((one, "mmdet"), (two, "mmseg"), (one, "mmpose")):
        with namespace.activate():
            assert handler.switch(name)
    assert [handler.names() for _, handler in (one, two)] == [["mmpose", "mmdet"], ["mmseg"]]
    one[1].clear()
    assert [handler.names() for _, handler in (one, two)] == [[], ["mmseg"]]


def test_what_no_archive_made_is_of_the_process(make: Make) -> None:
    _, handler = make("a")
    handler.switch("mmdet")
    scope = sys.modules["mmengine.utils.manager"].DefaultScope
    assert scope.names() == []
    scope.get_instance("mmcls")
    assert [scope.names(), handler.names()] == [["mmcls"], ["mmdet"]]
    scope.clear()
    assert scope.names() == []
