"""Namespace packages of which the environment has one portion, and an archive brings another.

The environment has ``google`` with ``google.protobuf``, for example, and a model's requirements add
``google.auth`` and ``google.cloud.storage``. What the environment has is used, like all that is
installed there; the rest is the archive's own.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any


class Portions:
    """Says whether a module in such a package is the environment's or the archive's.

    Args:
        home: the package in ``sys.modules`` below which the archive's modules are.
        top: the namespace package; both have it, and the environment's is loaded.
    """

    def __init__(self, home: str, top: str) -> None:
        self._home = home
        self._merged: set[str] = set()
        self._known: dict[str, str | None] = {top: self._merge(top)}

    def full_name(self, name: str) -> str | None:
        """The name in ``sys.modules`` of the archive's module ``name``; None if it has none."""
        if name not in self._known:
            parent = name.rpartition(".")[0]
            full = self.full_name(parent)
            if full is None or parent in self._merged:
                self._known[name] = full and self._find(name, parent)
            else:
                self._known[name] = f"{self._home}.{name}"
        return self._known[name]

    def _find(self, name: str, parent: str) -> str | None:
        full = f"{self._home}.{name}"
        own = PathFinder.find_spec(full, sys.modules[f"{self._home}.{parent}"].__path__)
        theirs = PathFinder.find_spec(name, sys.modules[parent].__path__)
        if own is None or (theirs is not None and theirs.loader is not None):
            return None
        return full if own.loader is not None or theirs is None else self._merge(name)

    def _merge(self, name: str) -> str:
        theirs = importlib.import_module(name)
        merged = importlib.import_module(f"{self._home}.{name}")
        merged.__class__ = _Merged
        vars(merged).update(_theirs=theirs, _own=self)
        self._merged.add(name)
        return merged.__name__


class _Merged(ModuleType):
    """The archive's portion; what it has not is the environment's."""

    def __getattr__(self, name: str) -> Any:
        bare = f"{self._theirs.__name__}.{name}"
        if not name.startswith("__") and self._own.full_name(bare) is None:
            try:
                return importlib.import_module(bare)
            except ModuleNotFoundError:
                pass
        raise AttributeError(f"module {self._theirs.__name__!r} has no attribute {name!r}")
