"""A context of ours around the import of a module, which may come late or never."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Around = Callable[[], AbstractContextManager[Any]]

#: What is done with a module, and each copy of it, by its name.
_changes: dict[str, Callable[[ModuleType], None]] = {}


def around_import(name: str, around: Around) -> None:
    """From now on the module ``name`` runs within ``around()``, and is otherwise as ever."""
    sys.meta_path.insert(0, _Finder(name, around))


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call ``change`` with the module ``name`` once it has run, now if it has already.

    Likewise with each copy of it that an archive brings.
    """
    _changes[name] = change
    around_import(name, partial(_then, change, name))
    if name in sys.modules:
        change(sys.modules[name])


def surround(spec: ModuleSpec, name: str) -> None:
    """Let a copy of the module ``name`` be changed after its import, if any is to be."""
    if name in _changes and spec.loader is not None:
        spec.loader = _Loader(spec.loader, partial(_then, _changes[name], spec.name))


@contextmanager
def _then(change: Callable[[ModuleType], None], name: str) -> Iterator[None]:
    yield
    change(sys.modules[name])


class _Finder(MetaPathFinder):
    def __init__(self, name: str, around: Around) -> None:
        self._name = name
        self._around = around

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._around)
        return spec


class _Loader(Loader):
    """The ordinary loader, which the module keeps."""

    def __init__(self, ordinary: Loader, around: Around) -> None:
        self._ordinary = ordinary
        self._around = around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the ordinary loader does."""
        return self._ordinary.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        module.__loader__ = self._ordinary
        if module.__spec__ is not None:
            module.__spec__.loader = self._ordinary
        with self._around():
            self._ordinary.exec_module(module)
