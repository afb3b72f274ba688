"""Names in ``sys.modules`` that stand for others: ``ts``, and bare names of archives' modules.

``ts`` is `kserve_torch.ts` for everybody (DESIGN). A bare name that is found nowhere else is looked
up in the archive that the calling thread works for, because unpicklers and compiled code ask for
modules by bare name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from kserve_torch.namespace.scopes import Scope, current_scope, scopes
from kserve_torch.namespace.searchpath import Shown

_OURS = "kserve_torch."


class _ServedLoader(importlib.abc.Loader):
    """Loads an alias: ``make`` returns the module, which keeps its own ``__spec__``."""

    def __init__(self, make: Callable[[], ModuleType]) -> None:
        self._make = make
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._make()
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # importlib has just replaced it with that of the alias.
        module.__spec__ = self._spec


class TsFinder(importlib.abc.MetaPathFinder):
    """Makes ``ts`` and all below it the modules of `kserve_torch.ts`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname.partition(".")[0] != "ts" or importlib.util.find_spec(_OURS + fullname) is None:
            return None
        return ModuleSpec(
            fullname, _ServedLoader(lambda: importlib.import_module(_OURS + fullname))
        )


def _user(name: str) -> Scope | None:
    """The archive that the thread works for, if it has a module ``name``."""
    scope = current_scope()
    return scope if scope is not None and scope.full_name(name) is not None else None


def _owner(name: str) -> Scope | None:
    """The same; if it has none, the packages of another model that have such a module, if any.

    Libraries of the environment remember for all models what they found for one. Once transformers
    has found accelerate in one model's packages, it imports it for others, too.
    """
    if (scope := _user(name)) is not None:
        return scope
    packages = dict.fromkeys(home for each in list(scopes.values()) for home in each.homes[1:])
    top = name.partition(".")[0]
    return next((scopes.get(home) for home in packages if f"{home}.{top}" in sys.modules), None)


class Alias(ModuleType):
    """Stands under a bare name for the module of whatever archive the thread works for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # For `pkgutil`, which lists what is there. If the import system could find the archive's
        # submodules on it, they would be loaded for everybody.
        self.__path__: Any = Shown(self._path)

    def __getattr__(self, name: str) -> Any:
        scope = _owner(self.__name__)
        full = scope.full_name(self.__name__) if scope else None
        # Code that goes through sys.modules, as inspect does, asks each module for ``__file__`` and
        # the like: that must not import the archive's module. Who asks for ``__spec__`` wants it.
        wanted = not name.startswith("__") or name in ("__all__", "__spec__")
        asks = not wanted and full not in sys.modules
        if scope is None or full is None or asks:
            raise AttributeError(f"{self.__name__} is a module of an archive that is not active")
        module = scope.import_module(self.__name__)
        if name == "__all__" and not hasattr(module, name):
            # Without this, a star import would take the names in the alias's own dict.
            return [public for public in vars(module) if not public.startswith("_")]
        return getattr(module, name)

    def _path(self) -> list[str]:
        scope = _owner(self.__name__)
        module = sys.modules.get(str(scope.full_name(self.__name__))) if scope else None
        return list(getattr(module, "__path__", ()))

    # Code outside of the archive sets what its modules read: a hubconf.py, ``mock.patch``.

    def __setattr__(self, name: str, value: Any) -> None:
        module = None if isinstance(value, Alias) else self._module(name)
        if module is None:  # the import system's
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def __delattr__(self, name: str) -> None:
        module = self._module(name)
        if module is None:
            super().__delattr__(name)
        else:
            delattr(module, name)

    def _module(self, name: str) -> ModuleType | None:
        """The module that ``name`` is to be set in; None for this one."""
        scope = None if name.startswith("__") else _owner(self.__name__)
        return None if scope is None else scope.import_module(self.__name__)


class _AliasLoader(_ServedLoader):
    """Loads an `Alias`, and reads files beside the module for ``pkgutil.get_data``."""

    def exec_module(self, module: ModuleType) -> None:
        # `Alias` forwards the look-ups, so that each archive's own files are found.
        del module.__spec__, module.__loader__
        self._alias = module

    def get_data(self, path: str) -> bytes:
        """See `importlib.abc.ResourceLoader`; the files may be in a zip file."""
        loader: Any = self._alias.__spec__.loader  # type: ignore[union-attr]
        return bytes(loader.get_data(path))


class BareNameFinder(importlib.abc.MetaPathFinder):
    """The last resort for ``import model`` in code outside of archives, such as an unpickler."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        scope = _owner(fullname) if is_alias(fullname.partition(".")[0]) else _user(fullname)
        if scope is None:
            return None

        def make() -> ModuleType:
            scope.import_module(fullname)
            return Alias(fullname)

        return ModuleSpec(fullname, _AliasLoader(make), is_package=True)


def known_elsewhere(name: str, *, folders: bool = True) -> bool:
    """Whether a top-level module ``name`` exists outside all archives.

    Namespace packages, folders without ``__init__.py``, count only with ``folders``.
    """
    if name in sys.modules:
        return not is_alias(name)
    finders = (
        finder for finder in sys.meta_path if not isinstance(finder, (TsFinder, BareNameFinder))
    )
    specs = (finder.find_spec(name, None) for finder in finders)
    return any(spec is not None and (folders or spec.loader is not None) for spec in specs)


def is_namespace_package(name: str) -> bool:
    """Whether a package ``name`` without ``__init__.py`` is loaded outside all archives."""
    module = sys.modules.get(name)
    return (
        module is not None
        and not is_alias(name)
        and getattr(module, "__file__", None) is None
        and hasattr(module, "__path__")
    )


def load_namespace_package(name: str) -> bool:
    """Whether there is such a package outside all archives, and no other of that name; load it."""
    if known_elsewhere(name, folders=False) or not known_elsewhere(name):
        return False
    importlib.import_module(name)
    return is_namespace_package(name)


def is_alias(name: str) -> bool:
    """Whether ``name`` is in ``sys.modules`` only as an alias for archives' modules."""
    return isinstance(sys.modules.get(name), Alias)
