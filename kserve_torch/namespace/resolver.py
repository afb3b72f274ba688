"""What an archive's code means by the name of a module: one of its own, or everybody's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from types import ModuleType

from kserve_torch.namespace import aliases, searchpath
from kserve_torch.namespace.portions import Portions
from kserve_torch.namespace.scopes import Scope, are_packages


class Resolver:
    """The names of one archive's modules.

    Args:
        folders: where its modules come from, but for what it adds to ``sys.path``.
        packages: what is installed for it, or None.
    """

    def __init__(self, scope: Scope, folders: Sequence[str], packages: Scope | None) -> None:
        self._scope = scope
        self._folders = folders
        self._packages = packages
        #: Full names by the top-level names that the archive's code has asked for.
        self.known: dict[str, str] = {}
        #: Namespace packages that it shares with the environment.
        self.merged: dict[str, ModuleType] = {}
        self._portions: dict[str, Portions] = {}
        self._foreign = {"__main__", "importlib", "ts", *sys.builtin_module_names}

    def full_name(self, name: str) -> str | None:
        """The name in ``sys.modules`` of the archive's module ``name``; None if it has none."""
        top, dot, rest = name.partition(".")
        if top in self._foreign:
            return None
        full = self.known.get(top) or self._search(top)
        if top in self._portions:
            return self._portions[top].full_name(name)
        return full and f"{full}{dot}{rest}"

    def _search(self, top: str) -> str | None:
        """Look for a module in the archive, then in its packages.

        As on TorchServe's ``sys.path`` the archive comes first, but after standard modules that are
        loaded already. Its namespace packages (folders without ``__init__.py``) come after regular
        packages elsewhere, but before namespace packages elsewhere: the server's working directory
        may have a folder ``models`` too. Those that are loaded there, or of which its packages have
        a portion, are shared, see `portions`.
        """
        if top in sys.stdlib_module_names and top in sys.modules:
            self._foreign.add(top)
            return None
        loaded, shared = f"{self._scope.name}.{top}", aliases.is_namespace_package(top)
        if loaded in sys.modules and not (shared and aliases.is_namespace_package(loaded)):
            return self.known.setdefault(top, loaded)  # code has called a loader's load_module
        before, after = searchpath.folders(self._scope.root)
        # In place, because it is the ``__path__`` of the archive's package.
        self._scope.path[:] = dict.fromkeys([*before, *self._folders, *after])
        folder = None
        for scope in (self._scope, self._packages):
            full = f"{scope.name}.{top}" if scope else ""
            spec = PathFinder.find_spec(full, scope.path) if scope else None
            if spec is not None and spec.loader is not None:
                return self.known.setdefault(top, full)
            folder = folder or (full if spec else None)
        if folder is not None and are_packages(folder.partition(".")[0]):
            shared = shared or aliases.load_namespace_package(top)
        if folder is not None and shared:
            self._portions[top] = Portions(folder.partition(".")[0], top)
            self.merged[top] = sys.modules[folder]
            return self.known.setdefault(top, folder)
        if aliases.known_elsewhere(top, folders=folder is None):
            self._foreign.add(top)
            return None
        return folder

    def bind(self, name: str, full: str | None) -> None:
        """Let ``name`` mean the archive's module ``full``; None to search for it again."""
        if full is not None and self.known.get(name) == full:
            return
        self._foreign.discard(name)
        self._portions.pop(name, None)
        self.merged.pop(name, None)
        if full is None:
            self.known.pop(name, None)
        else:
            self.known[name] = full
