"""``torch.library.custom_op`` for several instances: torch knows one operator of each name.

Each instance runs its archive's modules anew, and so defines the same operator again. torch would
free the first definition then, and the next call of it ends the process.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from kserve_torch import imports

_custom_op: Callable[..., Any] = torch.library.custom_op
_lock = threading.RLock()


@dataclass
class _Operator:
    """What stands for an operator's name, and the archives' packages that use it."""

    function: Callable[..., Any]
    definition: Any
    users: list[str] = field(default_factory=list)


_operators: dict[str, _Operator] = {}


def install() -> None:
    """Put `custom_op` into the place of torch's own."""
    torch.library.custom_op = custom_op


@functools.wraps(_custom_op)
def custom_op(
    name: str, fn: Callable[..., Any] | None = None, /, *args: Any, **options: Any
) -> Any:
    """`torch.library.custom_op`; an archive's operator that is there already is used again.

    Raises:
        RuntimeError: an open archive has another operator of that name.
    """
    if fn is None:
        return lambda function: custom_op(name, function, *args, **options)
    user = fn.__module__.partition(".")[0]
    if user not in imports.scopes:
        return _custom_op(name, fn, *args, **options)
    with _lock:
        known = _known(name, fn)
        if known is None:
            known = _operators[name] = _Operator(fn, _custom_op(name, fn, *args, **options))
        known.users.append(user)
        return known.definition


def _known(name: str, function: Callable[..., Any]) -> _Operator | None:
    """The operator of that name; None if nobody who could call it is left."""
    known = _operators.get(name)
    if known is None:
        return None
    known.users = [user for user in known.users if user in imports.scopes]
    if not known.users:
        return None
    if not _same(function, known.function):
        raise RuntimeError(
            f"another model, or another version of this one, has an operator {name} that differs: "
            "torch knows one of each name in a process"
        )
    return known


def _same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions do the same, by their code and the numbers and words that it reads."""
    return (facts := _facts(one)) is not None and facts == _facts(other)


def _facts(function: Callable[..., Any]) -> tuple[Any, ...] | None:
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType) or function.__closure__:
        return None
    code = function.__code__
    plain = {
        name: value
        for name in code.co_names
        if isinstance(value := function.__globals__.get(name), str | bytes | int | float)
    }
    return code, function.__defaults__, function.__kwdefaults__, plain
