"""Processes that archives' code starts.

Other programs find the archive's modules in ``PYTHONPATH``, as with TorchServe. joblib's do not
know the names that the modules have here: what they run is sent by value, as cloudpickle sends what
is in ``__main__``, with what it uses of its module.

Those of multiprocessing are started as the archive that starts them has set, which a process can do
once only; how they find its modules is `spawned`'s.
"""

from __future__ import annotations

import os
import subprocess
from functools import wraps
from multiprocessing.context import DefaultContext
from typing import Any

from kserve_torch.namespace.importhooks import after_import
from kserve_torch.namespace.scopes import PREFIX, current_scope

#: Positional arguments of `subprocess.Popen` up to the environment.
_BEFORE_ENV = 10

_start: Any = subprocess.Popen.__init__


class _StartMethod:
    """The attribute of multiprocessing's context with the method that was set, None if none was."""

    def __get__(self, context: object, owner: type) -> Any:
        return self._set_by(context).get("_actual_context")

    def __set__(self, context: object, method: Any) -> None:
        self._set_by(context)["_actual_context"] = method

    def _set_by(self, context: object) -> dict[str, Any]:
        scope = current_scope()
        return vars(context) if scope is None else scope.registered.setdefault(id(context), {})


class _ByValue(set[str]):
    """Names of modules whose functions and classes are sent by value."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith(PREFIX) or super().__contains__(name)


def install() -> None:
    """From now on what archives' code starts finds the archive's modules, or gets them."""
    subprocess.Popen.__init__ = _start_with_path  # type: ignore[method-assign]
    DefaultContext._actual_context = _StartMethod()  # type: ignore[attr-defined]
    after_import("cloudpickle.cloudpickle", _send_by_value)


@wraps(_start)
def _start_with_path(self: Any, *args: Any, **options: Any) -> None:
    scope = current_scope()
    if scope and len(args) <= _BEFORE_ENV and options.get("env") is None:
        before = [path] if (path := os.environ.get("PYTHONPATH")) else []
        folders = [*before, str(scope.root), *scope.package_folders()]
        options["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    _start(self, *args, **options)


def _send_by_value(cloudpickle: Any) -> None:
    # Old ones, which an archive may bring, have none.
    known = getattr(cloudpickle, "_PICKLE_BY_VALUE_MODULES", ())
    cloudpickle._PICKLE_BY_VALUE_MODULES = _ByValue(known)
