"""What mmengine and mmcv keep for the process, and take from modules' names: per archive.

mmengine has one default scope, which decides in which registry ``build`` looks; a second model with
another one would let the first find nothing more. Its visualizers and message hubs are made once
for each name, so that one model would draw with the class names of another.

A registry is known among its parent's children by the package that makes it.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from kserve_torch.namespace.importhooks import after_import
from kserve_torch.namespace.scopes import current_scope, scopes


def install() -> None:
    """Change these libraries, now or once they are imported."""
    after_import("mmengine.utils.manager", _separate)
    for module in ("mmcv.utils.registry", "mmengine.registry.registry"):
        after_import(module, _name_scopes)


class _Instances:
    """By name, the instances of a class: an attribute of its metaclass, to which each assigns."""

    def __init__(self) -> None:
        self._shared: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()

    def __get__(self, cls: type, meta: type) -> dict[str, Any]:
        scope = current_scope()
        if scope is None:
            return self._shared.setdefault(cls, OrderedDict())
        return scope.registered.setdefault(id(cls), OrderedDict())

    def __set__(self, cls: type, instances: dict[str, Any]) -> None:
        scope = current_scope()
        if scope is None:
            self._shared[cls] = instances
        else:
            scope.registered[id(cls)] = instances


def _separate(manager: ModuleType) -> None:
    manager.ManagerMeta._instance_dict = _Instances()


def _name_scopes(module: ModuleType) -> None:
    module.Registry.infer_scope = staticmethod(_infer_scope)


def _infer_scope() -> str:
    """The package that makes a registry, as it calls itself."""
    package, _, rest = str(sys._getframe(2).f_globals["__name__"]).partition(".")
    return rest.partition(".")[0] if package in scopes else package
