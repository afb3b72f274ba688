"""Names that a module imports only when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


def late(module: str, package: str, *names: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``module`` that takes ``names`` from ``package`` when asked for one.

    Raises:
        AttributeError: any other name; from the function that this returns.
        ImportError: the package is not installed; likewise.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(package), name)

    return find


def modules(package: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for ``package`` that imports its modules when asked for them.

    On TorchServe ``import ts`` is enough for ``ts.context.Context``, which it imports itself.

    Raises:
        AttributeError: it has no such module; from the function that this returns.
    """

    def find(name: str) -> Any:
        full = f"{package}.{name}"
        if name.startswith("_") or find_spec(full) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(full)

    return find
