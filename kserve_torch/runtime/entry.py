"""Find what to call in an archive: TorchServe's rules for handlers (CONTRACT H1-H5, T-33, T-37)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from kserve_torch.errors import LoadFailed
from kserve_torch.handler import STOCK, stock_handler
from kserve_torch.handler.classes import only_class
from kserve_torch.namespace import aliases
from kserve_torch.namespace.loader import Namespace
from kserve_torch.runtime.context import Context


@dataclass(frozen=True, slots=True)
class Entry:
    """What an archive's handler string refers to.

    Attributes:
        handle: called with rows and context, returns one result per row, or a coroutine of that.
        initialize: called once with the context.
        service: holds the handler's state: an instance of its class, or its module.
    """

    handle: Callable[[Any, Context], Any]
    initialize: Callable[[Context], Any]
    service: Any


def load_entry(namespace: Namespace, handler: str) -> Entry:
    """Import the handler and create its instance, without initialising it.

    The handler is ``module[.py][:name]``; the module is in the archive or installed, where it may
    be in a package. It has a function or class of that name (default: the function ``handle``), or
    exactly one class, with a ``handle`` method or attribute. Of several, it is the only one with
    such a method, unlike in TorchServe, which refuses them all.

    Raises:
        LoadFailed: no such module, or no telling which class.
        Exception: whatever the module or the class raises, with the name of a missing package.
    """
    path, _, attribute = handler.partition(":")
    name = PurePosixPath(path).name.removesuffix(".py")
    return entry_of(_find(namespace, name), attribute)


def entry_of(found: ModuleType | type, attribute: str = "") -> Entry:
    """The entry of a handler's class, or of its module: see `load_entry`.

    Raises:
        LoadFailed: there is no telling which class, or the class no ``handle``.
    """
    if isinstance(found, type):
        return _of_class(found)
    entry = getattr(found, attribute or "handle", None)
    if isinstance(entry, type):
        return _of_class(entry)
    if callable(entry):
        return Entry(entry, lambda context: entry(None, context), found)
    wanted = (
        f"the manifest names {attribute!r}, which it lacks; without it, exactly one class is wanted"
        if attribute
        else "one function 'handle', exactly one class or a manifest that names one is wanted"
    )
    return _of_class(only_class(found, lambda one: hasattr(one, "handle"), wanted))


def _find(namespace: Namespace, name: str) -> ModuleType | type:
    """The archive's module of that name, a stock handler, or an installed module."""
    if name and namespace.full_name(name) is not None:
        return namespace.import_module(name)
    stock = stock_handler(name.removeprefix("ts.torch_handler."))
    if stock is not None:
        return stock
    if _is_installed(name):
        return importlib.import_module(name)
    raise LoadFailed(
        f"the handler {name!r} is neither a file of the archive nor one of {', '.join(STOCK)}"
    )


def _is_installed(name: str) -> bool:
    """Whether a module of that name is installed, alone or in a package."""
    top, dot, _ = name.partition(".")
    if not all(map(str.isidentifier, name.split("."))) or not aliases.known_elsewhere(top):
        return False
    try:
        return not dot or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # the package is there, but needs a missing one
        return False


def _of_class(handler: type) -> Entry:
    service = handler()
    # An attribute counts as well: TorchServe's MicroBatching sets one in __init__ (CONTRACT H3).
    entry = getattr(service, "handle", None)
    if not callable(entry):
        raise LoadFailed(f"the handler class {handler.__name__} has no method 'handle'")
    return Entry(entry, getattr(service, "initialize", lambda context: None), service)
