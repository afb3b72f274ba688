"""Checks of single values from JSON and YAML; each raises ValueError with what is allowed.

A check is called with the value and returns it in the form in which it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import inf
from typing import Any

Check = Callable[[Any], Any]

#: Integers of YAML and JSON may be larger than any float.
_MOST = sys.float_info.max


def whole(low: int, high: float = inf) -> Callable[[Any], int]:
    """A whole number from ``low`` up, or to ``high``, both included.

    It may be written as a float: Helm's templates make 1e+06 of a million.
    """
    bounds = f">= {low}" if high == inf else f"from {low} to {high}"

    def check(value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"an integer {bounds}")
        return value

    return check


def scaled(factor: float) -> Callable[[Any], float]:
    """A number from 0 up, times ``factor``."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
            raise ValueError("a number >= 0")
        return float(value) * factor

    return check


def one_of(*words: str) -> Callable[[Any], str]:
    """One of these words, in any case."""

    def check(value: Any) -> str:
        word = str(value).lower()
        if word not in words:
            raise ValueError("one of " + ", ".join(words))
        return word

    return check


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def mapping(value: Any) -> dict[Any, Any]:
    """A mapping."""
    if not isinstance(value, dict):
        raise ValueError("a mapping")
    return value
