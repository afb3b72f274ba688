"""Modules that a package imports only when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


def submodules(package: str) -> Callable[[str], Any]:
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
