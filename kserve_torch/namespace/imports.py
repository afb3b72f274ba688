"""The import machinery under `loader`: finders that know archives, loaders that write nothing.

Each archive's modules live below a package of their own in ``sys.modules``::

    import model            in an archive's code
      -> Namespace._import  looked up in the module's ``__builtins__``, so any thread, any time
      -> kserve_torch_archive_3.model
      -> ArchiveFinder      searches the archive's folders, gives each module those ``__builtins__``

There are two more finders: ``ts`` is `kserve_torch.ts` for everybody (DESIGN), and a bare name that
is found nowhere else is looked up in the archive that the calling thread works for, because
unpicklers ask for modules by bare name.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.metadata import DistributionFinder, MetadataPathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from kserve_torch.namespace import searchpath, turns
from kserve_torch.namespace.scopes import PREFIX, Scope, calling_scope, scopes, thread

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OURS = "kserve_torch."


# --- modules of archives --------------------------------------------------------------------------


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


class _ExtensionLoader(ExtensionFileLoader):
    """Loads each file of a compiled module once: many end the process when loaded again.

    Alone in its folder it gets its bare name, under which it may enter more in ``sys.modules``:
    OpenCV's makes ``cv2.dnn`` and takes no other name than ``cv2`` for its own.
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        stat = os.stat(path)
        self._file = path, stat.st_ino, stat.st_mtime_ns, name.partition(".")[2]
        self._taken: dict[str, ModuleType] = {}

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package, _, bare = spec.name.partition(".")
        if self._file in _compiled:
            found = _compiled[self._file]
            sys.modules.update({f"{package}.{name}": module for name, module in found.items()})
            return found[bare]
        own = spec if "." in bare else ModuleSpec(bare, self, origin=spec.origin)
        with _explained(bare), self._taking_over(spec):
            return super().create_module(own)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        if self._file in _compiled:
            return
        bare = spec.name.partition(".")[2]
        with _explained(bare):
            with self._taking_over(spec):
                super().exec_module(module)
            _no_mixture(module, bare)
        _compiled[self._file] = {**self._taken, bare: module}

    @contextmanager
    def _taking_over(self, spec: ModuleSpec) -> Iterator[None]:
        """What is entered in ``sys.modules`` below the bare name becomes the archive's."""
        package, _, bare = spec.name.partition(".")
        before = sys.modules.copy()
        try:
            yield
        finally:
            for name, module in sys.modules.copy().items():
                if before.get(name) is module:
                    continue
                if name.startswith(f"{spec.name}."):
                    self._taken[name.partition(".")[2]] = module
                elif name.partition(".")[0] == bare:
                    self._taken[name] = sys.modules[f"{package}.{name}"] = module
                    if name in before:
                        sys.modules[name] = before[name]
                    else:
                        del sys.modules[name]


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Compiled code imports by bare name, past ``__import__``: say why that may have failed."""
    top = name.partition(".")[0]
    try:
        yield
    except Exception as error:
        why = f"the environment has a package {top} too, and compiled modules may get that one"
        if why in str(error) or not known_elsewhere(top):
            raise
        raise ImportError(f"{error} ({why})", name=name) from error


def _no_mixture(module: ModuleType, name: str) -> None:
    """Raise ImportError if it has imported what another package of its own one's name has."""
    top = name.partition(".")[0]
    for value in [*vars(module).values()]:
        if isinstance(value, ModuleType):
            home, found = value.__name__, sys.modules.get(value.__name__)
        elif isinstance(value, type | FunctionType):
            home = str(value.__module__)
            found = getattr(sys.modules.get(home), value.__name__, None)
        else:
            continue
        if found is value and home.partition(".")[0] == top and not is_alias(home):
            raise ImportError(f"{name} has imported another {home}")


def _source_beside(spec: ModuleSpec) -> str | None:
    """The source that a compiled module was made of, which pydantic 1 and mypyc's users ship."""
    if not isinstance(spec.loader, ExtensionFileLoader):
        return None
    path = Path(spec.loader.path)
    source = path.with_name(path.name.partition(".")[0] + ".py")
    return str(source) if source.is_file() else None


#: Compiled modules by file and name, each with what it has entered in ``sys.modules``.
_compiled: dict[tuple[str, int, int, str], dict[str, ModuleType]] = {}
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
        spec.loader = _ExtensionLoader(full, loader.path)
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
        source = _source_beside(spec)
        if source and known_elsewhere(fullname.split(".")[1]):
            # Only that can import the modules of its own package: see `_explained`.
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
        scope = thread.scope or calling_scope()
        folders = (scope.package_folders() or scope.path) if scope else []
        return MetadataPathFinder.find_distributions(
            DistributionFinder.Context(
                name=name, path=[*owner.path, *sys.path] if owner else folders
            )
        )


# --- aliases --------------------------------------------------------------------------------------


class _ServedLoader(importlib.abc.Loader):
    """Loads an alias: ``make`` gives the finished module, whose own attributes stay."""

    def __init__(self, make: Callable[[], ModuleType]) -> None:
        self._make = make
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._make()
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # importlib has just replaced it with the alias's.
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


class _Alias(ModuleType):
    """Stands under a bare name for the module of whatever archive the thread works for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # With the archive's own path here, its submodules would be found and loaded for everybody.
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        scope = thread.scope or calling_scope()
        full = scope.full_name(self.__name__) if scope else None
        # Code that goes through sys.modules, as inspect does, asks each module for ``__file__`` and
        # the like; that must not import the archive's module. Asking for ``__spec__`` may.
        wanted = not name.startswith("__") or name in ("__all__", "__spec__")
        asks = not wanted and full not in sys.modules
        if scope is None or full is None or asks:
            raise AttributeError(f"{self.__name__} is a module of an archive that is not active")
        module = scope.import_module(self.__name__)
        if name == "__all__" and not hasattr(module, name):
            # A star import would else take the names of this module.
            return [public for public in vars(module) if not public.startswith("_")]
        return getattr(module, name)


class _AliasLoader(_ServedLoader):
    """Loads an `_Alias`, and reads files beside the module for ``pkgutil.get_data``."""

    def exec_module(self, module: ModuleType) -> None:
        # `_Alias` forwards the look-up, so that each archive's own files are found.
        del module.__spec__

    def get_data(self, path: str) -> bytes:
        return Path(path).read_bytes()


class BareNameFinder(importlib.abc.MetaPathFinder):
    """The last resort for ``import model`` in code outside of archives, such as an unpickler."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        scope = thread.scope
        if scope is None or scope.full_name(fullname) is None:
            return None

        def make() -> ModuleType:
            scope.import_module(fullname)
            return _Alias(fullname)

        return ModuleSpec(fullname, _AliasLoader(make), is_package=True)


_FINDERS = (ArchiveFinder, TsFinder, BareNameFinder)
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


def known_elsewhere(name: str, *, folders: bool = True) -> bool:
    """Whether a top-level module ``name`` exists outside all archives.

    Args:
        name: of the module.
        folders: whether a namespace package, a folder without ``__init__.py``, counts.
    """
    if name in sys.modules:
        return not is_alias(name)
    finders = (finder for finder in sys.meta_path if not isinstance(finder, _FINDERS))
    specs = (finder.find_spec(name, None) for finder in finders)
    return any(spec is not None and (folders or spec.loader is not None) for spec in specs)


def is_alias(name: str) -> bool:
    """Whether ``name`` is in ``sys.modules`` only as an alias for archives' modules."""
    return isinstance(sys.modules.get(name), _Alias)


def forget(package: str) -> None:
    """Remove an archive's modules, and all aliases, from ``sys.modules``."""
    # Copying is atomic, unlike list(items()): other threads import meanwhile.
    for name, module in sys.modules.copy().items():
        if name.partition(".")[0] == package or isinstance(module, _Alias):
            sys.modules.pop(name, None)


def forget_loggers(package: str) -> None:
    """Forget the loggers of an archive's modules: `logging` itself never forgets a name."""
    loggers = logging.root.manager.loggerDict
    with logging._lock:  # type: ignore[attr-defined]  # others iterate under it
        for name in [*loggers]:
            if name.partition(".")[0] == package:
                del loggers[name]
