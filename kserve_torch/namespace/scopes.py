"""Which archives are open, and which one a thread works for."""

from __future__ import annotations

import importlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from traceback import walk_stack
from types import ModuleType
from typing import Any, Protocol

from kserve_torch.namespace.exits import Exits

#: The name of an archive's package is this and a number.
PREFIX = "kserve_torch_archive_"


class Scope(Protocol):
    """What other modules need to know of a `Namespace`."""

    name: str
    #: Packages whose modules are the archive's: ``name``, then that of its installed packages.
    homes: Sequence[str]
    #: Full names of its modules by the top-level names that its code has asked for.
    names: dict[str, str]
    root: Path
    path: list[str]
    builtins: dict[str, Any]
    pickle_module: ModuleType
    main: ModuleType
    figures: OrderedDict[Any, Any]
    #: What it has registered with libraries, by the identity of the table; `registrations`.
    registered: dict[int, dict[Any, Any]]
    exits: Exits

    def full_name(self, name: str) -> str | None:
        """The name in ``sys.modules`` of the archive's module ``name``; None if it has none."""

    def import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import ``name`` as the archive's code would."""

    def bind(self, name: str, full: str | None) -> None:
        """Let ``name`` mean the archive's module ``full``; None to search for it again."""

    def is_anothers(self, name: str) -> bool:
        """Whether a module ``name``, which is none of the archive's, is only another archive's."""

    def package_folders(self) -> list[str]:
        """Folders with the archive's own installed packages."""


#: Open archives by the name of their package; `loader` fills it.
scopes: dict[str, Scope] = {}


class _Thread(threading.local):
    scope: Scope | None = None


#: Its ``scope`` is the archive that the calling thread works for.
thread = _Thread()


def loaded_name(scope: Scope, name: object) -> str | None:
    """The full name of the archive's module ``name``, if it is loaded."""
    top, dot, rest = str(name).partition(".")
    # Not searched for: its folder may be off the path since, or hold another of that name.
    known = [f"{home}.{name}" for home in scope.homes]
    if (full := scope.names.get(top)) is not None:
        known.insert(0, f"{full}{dot}{rest}")
    return next((full for full in known if full in sys.modules), None)


def current_scope() -> Scope | None:
    """The archive that the thread works for; if none, the one whose code is the nearest caller."""
    return thread.scope or _calling_scope()


def registering_scope() -> Scope | None:
    """The archive whose own code is the nearest caller; None if it is importing a library."""
    for frame, _ in walk_stack(sys._getframe(1)):
        module = str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if module == "importlib._bootstrap":
            return None
        if package in scopes and not are_packages(package):
            return scopes[package]
    return None


def are_packages(name: str) -> bool:
    """Whether ``name`` is the package of what archives have installed, not of one's own code."""
    return any(name in scope.homes[1:] for scope in list(scopes.values()))


def import_module(name: str) -> ModuleType:
    """Import ``name`` as the current archive's code would; as ever if there is none."""
    scope = current_scope()
    return importlib.import_module(name) if scope is None else scope.import_module(name)


def _calling_scope() -> Scope | None:
    for frame, _ in walk_stack(sys._getframe(1)):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in scopes:
            return scopes[package]
    return None


def calling_package(name: str) -> str:
    """The top-level package of the archive ``name`` that calls, which takes ``name`` for its own.

    Diffusers do: ``import_module(__name__.split(".")[0])``.
    """
    for frame, _ in walk_stack(sys._getframe(1)):
        package, _, bare = str(frame.f_globals.get("__name__")).partition(".")
        if package == name:
            return f"{package}.{bare.partition('.')[0]}"
    return name
