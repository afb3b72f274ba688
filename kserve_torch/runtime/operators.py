"""``torch.library.custom_op`` for several instances: torch knows one operator per name.

Each instance runs its archive's modules again, and so defines the same operator again. torch would
then free the first definition, and the next call of that would crash the process. So each name is
defined for torch once, with a function that dispatches to the calling archive's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from kserve_torch.namespace.scopes import current_scope, scopes

_custom_op: Callable[..., Any] = torch.library.custom_op
_lock = threading.RLock()
#: Methods of torch's operators that take functions.
_REGISTERING = ("register_fake", "register_autograd", "register_kernel", "register_vmap")


class _Operator:
    """An operator of torch's, and each archive's functions for it.

    Attributes:
        schema: its arguments and results.
        definition: torch's operator.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.definition: Any = None
        self._functions: dict[Any, dict[str, Callable[..., Any]]] = {}

    def define(self, definition: Any) -> None:
        """Take torch's operator; what archives register with it is dispatched as well."""
        for name in _REGISTERING:
            setattr(definition, name, self._registering(name, getattr(definition, name)))
        self.definition = definition

    def _registering(self, name: str, register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def registering(*args: Any, **named: Any) -> Any:
            given = (*args, *named.values())
            if not any(map(callable, given)):  # used as a decorator
                return lambda function: registering(*args, function, **named)
            key = (name, *(str(value) for value in given if not callable(value)))
            with _lock:
                own = [self.own((*key, i), v) if callable(v) else v for i, v in enumerate(args)]
                more = {k: self.own((*key, k), v) if callable(v) else v for k, v in named.items()}
                return register(*own, **more)

        return registering

    def own(self, key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for torch that dispatches to the calling archive's function for ``key``."""
        functions = self._functions.setdefault(key, {})
        functions[_user(function)] = function
        # An archive without a kernel for this device computes with its operator's own function.
        defaults = self._functions["run"] if key[0] == "register_kernel" else {}

        @functools.wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            scope = current_scope()
            user = "" if scope is None else scope.name
            chosen = functions.get(user) or defaults.get(user)
            # On torch's own threads the caller is unknown.
            return (chosen or next(reversed(functions.values())))(*args, **named)

        return run

    def is_used(self) -> bool:
        """Whether an open archive has functions for it; those of closed ones are dropped."""
        for functions in self._functions.values():
            for user in functions.keys() - scopes.keys():
                del functions[user]
        return any(self._functions.values())


def _user(function: Callable[..., Any]) -> str:
    """The top package of a function's module: for an archive's function, the archive's."""
    return str(getattr(function, "__module__", "")).partition(".")[0]


_operators: dict[str, _Operator] = {}


def install() -> None:
    """Replace torch's own with `custom_op`."""
    torch.library.custom_op = custom_op


@functools.wraps(_custom_op)
def custom_op(
    name: str, fn: Callable[..., Any] | None = None, /, *, mutates_args: Any, **options: Any
) -> Any:
    """`torch.library.custom_op`; an operator of archives is defined for torch only once.

    Raises:
        RuntimeError: an open archive has an operator of that name with other arguments.
    """
    if fn is None:
        return lambda function: custom_op(name, function, mutates_args=mutates_args, **options)
    if _user(fn) not in scopes:
        return _custom_op(name, fn, mutates_args=mutates_args, **options)
    schema = options.pop("schema", None)
    schema = schema or torch.library.infer_schema(fn, mutates_args=mutates_args)
    with _lock:
        known = _known(name, schema)
        run = known.own("run", fn)
        if known.definition is None:
            known.define(_custom_op(name, run, mutates_args=mutates_args, schema=schema, **options))
            _operators[name] = known
        return known.definition


def _known(name: str, schema: str) -> _Operator:
    """The operator of that name; a new one if no open archive uses it."""
    known = _operators.get(name)
    if known is None or not known.is_used():
        return _Operator(schema)
    if known.schema != schema:
        raise RuntimeError(
            f"another model, or another version of this one, has an operator {name} with other "
            "arguments: torch knows one of each name in a process"
        )
    return known
