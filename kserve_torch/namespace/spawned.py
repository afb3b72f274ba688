"""Processes that multiprocessing spawns: they find archives' modules under the names of here.

What such a process is to run refers to functions and classes as they are called where it was
started, ``kserve_torch_archive_3.handler``, and so does what it sends back. Forked processes have
the modules; a spawned one gets a `Namespace` of the same name once it asks for one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from kserve_torch.namespace.importhooks import after_import
from kserve_torch.namespace.loader import Namespace
from kserve_torch.namespace.scopes import scopes, thread


class _Open(NamedTuple):
    """What a `Namespace` is made of; ``packages`` is the name of another one, if it has one."""

    root: Path
    path: Sequence[str]
    packages: str | None


class _Archives:
    """Becomes, where it is unpickled, the finder of the archives that are open here."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Mapping[str, _Open]]]:
        opened = {
            scope.name: _Open(scope.root, scope.path, next(iter(scope.homes[1:]), None))
            for scope in list(scopes.values())
        }
        return find_archives, (opened,)


@cache
def install() -> None:
    """From now on processes that are spawned find the archives."""
    after_import("multiprocessing.spawn", _tell_of_archives)


def _tell_of_archives(spawn: Any) -> None:
    prepared = spawn.get_preparation_data
    # What a process gets first; it ignores keys that it does not know.
    spawn.get_preparation_data = lambda name: {**prepared(name), "archives": _Archives()}


def find_archives(opened: Mapping[str, _Open]) -> None:
    """Find these archives from now on, in a process that was spawned."""
    sys.meta_path.insert(0, _Finder(opened))


class _Finder(MetaPathFinder):
    def __init__(self, opened: Mapping[str, _Open]) -> None:
        self._opened = opened

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname not in self._opened:
            return None
        namespace = self._made(fullname)
        if thread.scope in (None, namespace.packages):  # the process is this archive's
            thread.scope = namespace
        return ModuleSpec(fullname, _Loaded())

    def _made(self, name: str) -> Namespace:
        made = scopes.get(name)
        if isinstance(made, Namespace):
            return made
        root, path, packages = self._opened[name]
        folders = [Path(folder) for folder in path]
        return Namespace(root, folders, self._made(packages) if packages else None, name)


class _Loaded(Loader):
    """Of the package that a `Namespace` has made."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """That package."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""
