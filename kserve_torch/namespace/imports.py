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
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.metadata import DistributionFinder, MetadataPathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kserve_torch.namespace import searchpath, turns
from kserve_torch.namespace.aliases import Alias, BareNameFinder, TsFinder, known_elsewhere
from kserve_torch.namespace.compiled import CompiledLoader, source_beside
from kserve_torch.namespace.scopes import PREFIX, Scope, current_scope, scopes, thread

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


class ArchiveFinder(importlib.abc.MetaPathFinder):
    """Finds ``kserve_torch_archive_3.x`` in that archive's folders and installed packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not fullname.startswith(PREFIX):
            return None
        scope = scopes.get(fullname.partition(".")[0])
        spec = PathFinder.find_spec(fullname, path) if scope and path is not None else None
        if spec is None or scope is None:
            return None
        source = source_beside(spec)
        if source and known_elsewhere(fullname.split(".")[1]):
            # Only that can import the modules of its own package: see `compiled`.
            spec.loader, spec.origin, spec.cached = SourceFileLoader(fullname, source), source, None
        adopt(spec, fullname, scope)
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


_lock = threading.Lock()


def install() -> None:
    """Put the finders in place, once; a ``ts`` that was imported before is dropped."""
    with _lock:
        if any(isinstance(finder, ArchiveFinder) for finder in sys.meta_path):
            return
        searchpath.install()
        turns.install(lambda: thread.scope is not None)
        sys.meta_path[:0] = [ArchiveFinder(), TsFinder()]
        sys.meta_path.append(BareNameFinder())
        for name in [name for name in list(sys.modules) if name.partition(".")[0] == "ts"]:
            del sys.modules[name]


def forget(package: str) -> None:
    """Remove an archive's modules, and all aliases, from ``sys.modules``."""
    # Copying is atomic, unlike list(items()): other threads import meanwhile.
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] == package or isinstance(module, Alias):
            sys.modules.pop(name, None)
