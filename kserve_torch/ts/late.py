"""Names that a module offers and does not import before somebody asks for them."""

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

    ``import ts`` is enough for ``ts.context.Context`` on TorchServe, which has imported it before.

    Raises:
        AttributeError: it has none of that name; from the function that this returns.
    """

    def find(name: str) -> Any:
        full = f"{package}.{name}"
        if name.startswith("_") or find_spec(full) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(full)

    return find
