"""A context of ours around the import of a module, which may come late or never."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

#: Given the name that the module gets: an archive's copy has one of its own.
Around = Callable[[str], AbstractContextManager[Any]]

_arounds: dict[str, list[Around]] = {}


def around_import(name: str, around: Around) -> None:
    """From now on the module ``name`` runs within ``around``, as does each archive's copy of it."""
    _arounds.setdefault(name, []).append(around)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call ``change`` with the module ``name`` once it has run, now if it has already.

    Likewise with each copy of it that an archive brings.
    """
    around_import(name, partial(_then, change))
    if name in sys.modules:
        change(sys.modules[name])


@contextmanager
def _then(change: Callable[[ModuleType], None], name: str) -> Iterator[None]:
    yield
    change(sys.modules[name])


def surround(spec: ModuleSpec, name: str) -> None:
    """Let the module that ``spec`` describes, ``name`` or a copy of it, run in its context."""
    if name in _arounds and spec.loader is not None:
        spec.loader = _Loader(spec.loader, _arounds[name])


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _arounds else None
        if spec is not None:
            surround(spec, fullname)
        return spec


_FINDER = _Finder()


class _Loader(Loader):
    """The ordinary loader, which the module keeps."""

    def __init__(self, ordinary: Loader, arounds: Sequence[Around]) -> None:
        self._ordinary = ordinary
        self._arounds = arounds

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the ordinary loader does."""
        return self._ordinary.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        module.__loader__ = self._ordinary
        if module.__spec__ is not None:
            module.__spec__.loader = self._ordinary
        with ExitStack() as stack:
            for around in self._arounds:
                stack.enter_context(around(module.__name__))
            self._ordinary.exec_module(module)
