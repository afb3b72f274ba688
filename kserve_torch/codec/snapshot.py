"""Results are taken at once: a handler may write to what it returned when its next batch comes."""

from __future__ import annotations

from copy import copy
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson

from kserve_torch.codec.values import is_torch, json_text

#: Immutable types.
_FIXED = frozenset((str, bytes, int, float, bool, type(None)))
_LISTS = frozenset((list,))
_NESTED = (dict, list, tuple)


def snapshot(value: Any) -> Any:
    """``value`` in memory of its own; torch tensors are moved to the host.

    Dicts, lists, tuples, dataclasses, bytes and arrays are copied with all that is in them, and
    named tuples become plain ones; any other object is left as it is.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if isinstance(value, dict):
        return {key: snapshot(member) for key, member in value.items()}
    if isinstance(value, list):
        # Long lists are mostly of numbers, or of pairs of numbers, as of pixels: one check of all
        # types instead of a call for each.
        if _FIXED.issuperset(map(type, value)):
            return value[:]
        if _LISTS.issuperset(map(type, value)):
            members = chain.from_iterable(value)
            if _FIXED.issuperset(map(type, members)):
                return list(map(list.copy, value))
        return list(map(snapshot, value))
    if isinstance(value, tuple):
        return tuple(map(snapshot, value))
    if isinstance(value, bytearray | np.ndarray):
        return value.copy()
    if kind is memoryview:
        return bytes(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _same_fields(value)
    return value.detach().to("cpu", copy=True) if is_torch(value) else value


def written(value: Any, option: int = 0) -> Any:
    """``value`` as `snapshot` takes it, but dicts, lists and tuples as their JSON text.

    To write them, with orjson's ``option``, takes less time than to copy them.
    """
    if not isinstance(value, _NESTED):
        return snapshot(value)
    try:  # for each row: `suppress` takes longer than orjson
        return orjson.Fragment(json_text(value, option))
    except TypeError:  # the copy's error says more
        return snapshot(value)


def _same_fields(value: Any) -> Any:
    """A dataclass's copy, made without its own code, which may check or convert what it gets."""
    duplicate = copy(value)
    for field in fields(value):
        if hasattr(value, field.name):
            object.__setattr__(duplicate, field.name, snapshot(getattr(value, field.name)))
    return duplicate
