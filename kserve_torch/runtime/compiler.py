"""torch's compiler stays out of the process until something is compiled.

`import torchvision` takes 1.6 seconds and 150 MB because of one line in its ``ops``, which imports
a function of ``torch._dynamo`` that is hardly ever called. While torchvision is imported, stand-ins
replace those two modules; whoever asks them for anything else gets the real ones.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

_PACKAGE, _UTILS = "torch._dynamo", "torch._dynamo.utils"


def defer_compiler() -> None:
    """Make later imports of torchvision in this process leave the compiler out."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _StandIn(ModuleType):
    """Gives way to the real module, for everybody, when an attribute is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _withdraw()
        return getattr(importlib.import_module(self.__name__), name)


def _is_compile_supported(device_type: str) -> bool:
    """The one function that torchvision imports by name."""
    real: Any = importlib.import_module(_UTILS)
    return bool(real.is_compile_supported(device_type))


@contextmanager
def _stand_ins() -> Iterator[None]:
    if _PACKAGE in sys.modules:
        yield
        return
    package, utils = _StandIn(_PACKAGE), _StandIn(_UTILS)
    package.__path__ = [f"{folder}/_dynamo" for folder in torch.__path__]
    vars(utils)["is_compile_supported"] = _is_compile_supported
    sys.modules |= {_PACKAGE: package, _UTILS: utils}
    try:
        yield
    finally:
        _withdraw()


def _withdraw() -> None:
    for name in (_PACKAGE, _UTILS):
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


class _Finder(MetaPathFinder):
    """Finds torchvision as usual, and gives it a loader with the stand-ins."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of torchvision itself only."""
        spec = PathFinder.find_spec(name, path, target) if name == "torchvision" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """The ordinary loader, with the stand-ins around it."""

    def __init__(self, ordinary: Loader) -> None:
        self._ordinary = ordinary

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the ordinary loader does."""
        return self._ordinary.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module; it keeps its ordinary loader."""
        module.__loader__ = self._ordinary
        if module.__spec__ is not None:
            module.__spec__.loader = self._ordinary
        with _stand_ins():
            self._ordinary.exec_module(module)
