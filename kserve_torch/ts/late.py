"""Names of packages that take long to import: a module that offers them does not import them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
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
