"""The classes that a file of an archive defines: a handler file's handler, a model file's model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from kserve_torch.errors import LoadFailed


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that ``module`` itself defines, by name; only subclasses of ``parent_class``."""
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__
        and (parent_class is None or issubclass(member, parent_class))
    ]


def only_class(module: ModuleType, suits: Callable[[type], bool], wanted: str) -> type[Any]:
    """The one class that a file of an archive defines.

    Of several, which TorchServe refuses, it is the only one that ``suits``: the others may be
    helpers, or parts of it.

    Raises:
        LoadFailed: it defines none, or there is no telling which; says what is ``wanted``.
    """
    found = list_classes_from_module(module)
    classes = [one for one in found if suits(one)] or found
    if len(classes) != 1:
        names = ", ".join(one.__name__ for one in classes) or "none"
        raise LoadFailed(f"{file_of(module)}: {wanted}, got {names}")
    return classes[0]


def file_of(module: ModuleType) -> str:
    """The name of a module's file in the archive."""
    return f"{module.__name__.rpartition('.')[2]}.py"
