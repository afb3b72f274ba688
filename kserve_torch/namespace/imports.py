"""The import machinery under `loader`: finders that know archives, loaders that write nothing.

Each archive's modules live below a package of their own in ``sys.modules``::

    import model            in an archive's code
      -> Namespace._import  looked up in the module's ``__builtins__``, so any thread, any time
      -> kserve_torch_archive_3.model
      -> ArchiveFinder      searches the archive's folders, gives each module those ``__builtins__``

Two more finders are `aliases`'; compiled modules are `compiled`'s.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.metadata import DistributionFinder, MetadataPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kserve_torch.namespace import importlock, searchpath
from kserve_torch.namespace.aliases import Alias, BareNameFinder, TsFinder, known_elsewhere
from kserve_torch.namespace.compiled import CompiledLoader, source_beside
from kserve_torch.namespace.importhooks import after_import, surround
from kserve_torch.namespace.scopes import (
    PREFIX,
    Scope,
    current_scope,
    loaded_name,
    scopes,
    thread,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _SourceLoader(SourceFileLoader):
    """Runs a module with its archive's ``__builtins__``."""

    builtins: Mapping[str, Any]

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self.builtins
        super().exec_module(module)

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        """Write no bytecode: archives are read-only (DESIGN, law 7)."""


class _BytecodeLoader(SourcelessFileLoader):
    """The same, for modules that an archive brings as bytecode only."""

    builtins: Mapping[str, Any]

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = self.builtins
        super().exec_module(module)


_RUN: dict[type, Any] = {SourceFileLoader: _SourceLoader, SourcelessFileLoader: _BytecodeLoader}
_ANY = DistributionFinder.Context()


def adopt(spec: ModuleSpec, full: str, scope: Scope) -> None:
    """Let the module be the archive's, as ``full``; unless it is not loaded from a plain file."""
    loader: Any = spec.loader
    if type(loader) in _RUN:
        # In place: who made the spec of a loader may run the module with that.
        loader.__class__ = _RUN[type(loader)]
        loader.builtins = scope.builtins
        spec.name = loader.name = full
    elif type(loader) is ExtensionFileLoader:
        spec.loader = CompiledLoader(full, loader.path)
        spec.name = full


def adopt_file(spec: ModuleSpec, scope: Scope) -> None:
    """Let the module be the archive's, under its name, if it is one of the archive's files.

    So two archives may run two files under one name, and a package that runs its own
    ``__init__.py`` anew, as transformers does, gets itself and not the server's.
    """
    full = scope.full_name(spec.name) if "." in spec.name else f"{scope.name}.{spec.name}"
    if spec.name == "__main__" or not str(full).startswith(f"{scope.name}."):
        return
    if Path(spec.origin or "/").resolve().is_relative_to(scope.root.resolve()):
        adopt(spec, str(full), scope)


class ArchiveFinder(importlib.abc.MetaPathFinder):
    """Finds ``kserve_torch_archive_3.x`` in that archive's folders and installed packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not fullname.startswith(PREFIX):
            return None
        scope = scopes.get(fullname.partition(".")[0])
        if scope is None or path is None:
            return None
        spec = PathFinder.find_spec(fullname, path) or _by_own_finders(fullname, path)
        if spec is None:
            return None
        source = source_beside(spec)
        if source and known_elsewhere(fullname.split(".")[1]):
            # Only that can import the modules of its own package: see `compiled`.
            spec.loader, spec.origin, spec.cached = SourceFileLoader(fullname, source), source, None
        adopt(spec, fullname, scope)
        surround(spec, fullname.partition(".")[2])
        return spec

    def find_distributions(self, context: DistributionFinder.Context = _ANY) -> Iterable[Any]:
        """Installed packages of the calling archive (``importlib.metadata``), on any thread.

        Packages ask for ``version(__name__)``, and so by the name that they have here; it says
        which archive's they are. One that an archive brings as a folder may be the server's too.
        """
        package, _, bare = (context.name or "").partition(".")
        owner = scopes.get(package)
        if owner and not bare:
            return ()
        name = bare if owner else context.name
        scope = current_scope()
        folders = (scope.package_folders() or scope.path) if scope else []
        return MetadataPathFinder.find_distributions(
            DistributionFinder.Context(
                name=name, path=[*owner.path, *sys.path] if owner else folders
            )
        )


def _by_own_finders(fullname: str, path: Sequence[str]) -> ModuleSpec | None:
    """What the archive's packages have made findable: sentence-transformers its old names."""
    package, _, bare = fullname.partition(".")
    for finder in _finders_of(package):
        find = getattr(finder, "find_spec", None)  # old ones have only find_module
        spec: ModuleSpec | None = find and find(bare, path)
        if spec is not None:
            spec.name = fullname
            return spec
    return None


def _finders_of(package: str) -> list[Any]:
    """Finders whose class is in one of an archive's modules."""
    return [
        finder
        for finder in list(sys.meta_path)
        if str(getattr(finder, "__module__", "")).partition(".")[0] == package
    ]


_bootstrap: Any = importlib.import_module("_frozen_importlib")
_load_module = _bootstrap._load_module_shim


def _load_own(loader: Any, fullname: str) -> ModuleType:
    """What ``load_module`` of all loaders calls: for an archive's files, once per archive."""
    scope = current_scope()
    spec = importlib.util.spec_from_loader(fullname, loader) if scope else None
    if scope is not None and spec is not None:
        adopt_file(spec, scope)
        if spec.name != fullname and "." not in fullname:
            scope.bind(fullname, spec.name)
        loader, fullname = spec.loader, spec.name
    return _load_module(loader, fullname)  # type: ignore[no-any-return]


def _loading(make: Callable[[str, str], Any]) -> Callable[..., ModuleType]:
    """A function of ``imp``, whose own loaders are unknown to `adopt`; Python 3.12 has no more."""

    def load(name: str, pathname: str, file: object = None) -> ModuleType:
        return make(name, pathname).load_module(name)  # type: ignore[no-any-return]

    return load


def _change_imp(imp: Any) -> None:
    if imp.__name__ == "imp":  # and not an archive's module of that name
        imp.load_source = _loading(SourceFileLoader)
        imp.load_compiled = _loading(SourcelessFileLoader)


@cache
def install() -> None:
    """Put the finders in place; a ``ts`` that was imported before is dropped."""
    searchpath.install()
    importlock.install(lambda: thread.scope is not None)
    _bootstrap._load_module_shim = _load_own
    after_import("imp", _change_imp)
    sys.meta_path[:0] = [ArchiveFinder(), TsFinder()]
    sys.meta_path.append(BareNameFinder())
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == "ts"]:
        del sys.modules[name]


def forget(scope: Scope) -> None:
    """Remove an archive's modules, finders, and the aliases that no other uses."""
    for finder in _finders_of(scope.name):
        sys.meta_path.remove(finder)
    others = [other for other in scopes.values() if other.name not in scope.homes]
    # Copying is atomic, unlike list(items()): other threads import meanwhile.
    for name, module in sys.modules.copy().items():
        own = name.partition(".")[0] == scope.name
        # Not all aliases: an unpickler imports a module, and then takes it from ``sys.modules``.
        if own or (
            isinstance(module, Alias) and not any(loaded_name(each, name) for each in others)
        ):
            sys.modules.pop(name, None)
