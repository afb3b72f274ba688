"""torch's compiler stays out of the process until something is compiled.

`import torchvision` takes 1.6 seconds and 150 MB because of one line in its ``ops``, which imports
a function of ``torch._dynamo`` that is hardly ever called. While torchvision is imported, stand-ins
replace those two modules; whoever asks them for anything else gets the real ones.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch

from kserve_torch.namespace.importhooks import around_import

_PACKAGE, _UTILS = "torch._dynamo", "torch._dynamo.utils"


@cache
def defer_compiler() -> None:
    """Make later imports of torchvision in this process leave the compiler out."""
    around_import("torchvision", _stand_ins)


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
def _stand_ins(_: str) -> Iterator[None]:
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
