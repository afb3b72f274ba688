"""One import namespace per handler instance: archives may share module names (CONTRACT D4, T-35).

TorchServe's workers are processes, with the model's folder on ``sys.path`` and as their working
directory. Here a worker is a thread with a `Namespace`, which gives it the same view of both.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

from kserve_torch.namespace import (
    aliases,
    collectors,
    imports,
    loggers,
    openmmlab,
    pretrained,
    processes,
    protobuf,
    pyplot,
    registrations,
    rewriting,
    searchpath,
    stdlib,
)
from kserve_torch.namespace.exits import Exits
from kserve_torch.namespace.resolver import Resolver
from kserve_torch.namespace.scopes import PREFIX, calling_package, scopes, thread
from kserve_torch.namespace.workdir import (
    has_own_directory,
    move_in,
    move_out,
    own_directory,
    working_in,
)

_lock = threading.Lock()
_numbers = itertools.count()


class Namespace:
    """What one instance's code can import by bare name, and where it opens files.

    Code of the archive sees its modules as ``import model``; in ``sys.modules`` they are called
    ``kserve_torch_archive_<n>.model``, so no two archives, and no two instances of one archive,
    share a module. Look-ups depend on the importing module, so they are right on every thread, and
    long after loading too.

    Args:
        root: the archive's folder, where relative file names start.
        path: folders that modules come from; the root if empty (CONTRACT A11).
        packages: namespace of the packages installed for this model, or None.
        name: of its package; a new one if None.
    """

    def __init__(
        self,
        root: Path,
        path: Sequence[Path] = (),
        packages: Namespace | None = None,
        name: str | None = None,
    ) -> None:
        with _lock:
            _install()
            stdlib.install()  # each time: runpy puts other modules in the place of main
        self.root = root
        folders = [str(folder) for folder in path or (root,)]
        self.path = list(dict.fromkeys(folders))
        self.packages = packages
        self.closed = False
        self._shares_directory = False
        own = stdlib.Builtins(__import__=self._import, open=self._open)
        self.builtins: dict[str, Any] = vars(own)
        self.main: ModuleType = stdlib.Lent(sys.modules["__main__"])
        self.pickle_module = stdlib.pickle_module(self)
        self.exits = Exits()
        self._lent = stdlib.lent_to(self, own)
        self.figures: OrderedDict[Any, Any] = OrderedDict()
        self.registered: dict[int, dict[Any, Any]] = {}
        # Never used again: TorchScript keeps classes by their module's name for the life of the
        # process, and would confuse this archive's with another's.
        self.name = name or f"{PREFIX}{next(_numbers)}"
        self._resolver = Resolver(self, folders, packages)
        self.names = self._resolver.known
        self.homes: Sequence[str] = (self.name, packages.name) if packages else (self.name,)
        searchpath.claim(root)
        package = ModuleType(self.name, "The modules of one model archive.")
        package.__path__ = self.path
        with _lock:
            sys.modules[self.name] = package
            scopes[self.name] = self

    # --- names ---

    def full_name(self, name: str) -> str | None:
        """The name in ``sys.modules`` of the archive's module ``name``; None if it has none."""
        return self._resolver.full_name(name)

    def bind(self, name: str, full: str | None) -> None:
        """Let ``name`` mean the archive's module ``full``; None to search for it again."""
        self._resolver.bind(name, full)

    def is_anothers(self, name: str) -> bool:
        """Whether a module ``name``, which is none of the archive's, is only another archive's.

        Of installed packages it is not, if they work for that one: hydra imports what its YAML
        names.
        """
        if not any(map(aliases.is_alias, (name.partition(".")[0], name))):
            return False
        user = thread.scope
        if not isinstance(user, Namespace) or user.packages is not self:
            return True
        return user.full_name(name) is None

    def package_folders(self) -> list[str]:
        """Folders with the packages that were installed for this model only."""
        return self.packages.path if self.packages else []

    # --- importing ---

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import ``name`` as the archive's code would: ``importlib.import_module`` for archives.

        Raises:
            ImportError: as usual, with the bare name.
        """
        with _bare_names():
            absolute = importlib.util.resolve_name(name, package)
            if absolute == self.name:
                absolute = calling_package(self.name)
            own = self._standard(absolute)
            return own or importlib.import_module(self._open_name(absolute) or absolute)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """The ``__import__`` of the archive's modules."""
        full = self._open_name(name) if level == 0 else None
        if full is None and level == 0:
            module = builtins.__import__(name, globals, locals, fromlist or (), 0)
            return self._standard(name if fromlist else name.partition(".")[0]) or module
        with _bare_names():
            module = builtins.__import__(full or name, globals, locals, fromlist or (), level)
        if full is not None and isinstance(fromlist, list) and not fromlist:
            # C's PyImport_Import, which takes the module from sys.modules, by its bare name.
            with self.activate():
                importlib.import_module(name)
        if fromlist or full is None:
            return module
        # ``import a.b`` binds a; the import above returned the archive's package.
        top = full.removesuffix(name.partition(".")[1] + name.partition(".")[2])
        return sys.modules[top]

    def _standard(self, name: str) -> ModuleType | None:
        """What the archive has in place of a standard module."""
        if name == "__main__":
            return self.main
        return self._lent.get(name) or self._resolver.merged.get(name)

    def _open_name(self, name: str) -> str | None:
        full = self.full_name(name)
        if full is not None and self.closed:
            raise ImportError(f"cannot import {name!r}: the model is unloaded", name=name)
        if full is None and self.is_anothers(name):
            # Code that only tries an import must not find it.
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return full

    # --- files ---

    def _open(self, file: Any, *args: Any, **kwargs: Any) -> Any:
        """``open`` in the archive's modules: relative names mean the model's files, if they exist.

        Threads of the worker have that working directory, or the one that the handler has changed
        to; this is for all others.
        """
        relative = isinstance(file, str | os.PathLike) and not os.path.isabs(file)
        if relative and not has_own_directory():
            path = os.path.join(self.root, os.fspath(file))
            if os.path.exists(path):
                file = path
        rewriting.let_go(file, args[0] if args else kwargs.get("mode"), self.root)
        return open(file, *args, **kwargs)

    # --- threads ---

    def enter_thread(self) -> None:
        """Make the archive's folder the calling thread's working directory, as long as it lives.

        Not if the system has no working directories per thread: see `workdir`.
        """
        if not own_directory(self.root):
            move_in(self.root)
            self._shares_directory = True

    def activate(self) -> AbstractContextManager[None]:
        """Within it, the calling thread works for this archive: unpicklers find its modules."""
        return _Active(self)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """`activate`, with the archive's folder as the working directory, on any thread (T-36)."""
        with self.activate(), working_in(self.root):
            yield

    def close(self) -> None:
        """Forget all modules; code that still runs can import no more of the archive."""
        if self.closed:
            return
        with self.activate():
            self.exits.run()
        self.closed = True
        if self._shares_directory:
            move_out(self.root)
        searchpath.release(self.root)
        with _lock:
            imports.forget(self)
            scopes.pop(self.name, None)
        loggers.forget(self.name)
        protobuf.forget(self.name)
        for folder in (str(self.root), *self.path):
            # Copied first, because other threads add to it.
            for name in [name for name in list(sys.path_importer_cache) if name.startswith(folder)]:
                sys.path_importer_cache.pop(name, None)


@cache
def _install() -> None:
    """Put in place what lets archives share one interpreter."""
    for part in (
        collectors,
        imports,
        openmmlab,
        pretrained,
        processes,
        protobuf,
        pyplot,
        registrations,
        rewriting,
    ):
        part.install()


class _Active:
    """A class instead of a generator for speed: every call of a handler goes through it."""

    __slots__ = ("_before", "_namespace")

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def __enter__(self) -> None:
        self._before, thread.scope = thread.scope, self._namespace

    def __exit__(self, *error: object) -> None:
        thread.scope = self._before


@contextmanager
def _bare_names() -> Iterator[None]:
    """Make a failed import name ``model``, not ``kserve_torch_archive_3.model``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith(PREFIX):
            bare = error.name.partition(".")[2]
            if isinstance(error, PackageNotFoundError):  # it makes both of what it was given
                error.args = (bare,)
            else:
                error.name, error.msg = bare, f"No module named {bare!r}"
                error.args = (error.msg,)
        raise
