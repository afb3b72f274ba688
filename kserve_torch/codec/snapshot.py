"""Copies of results: a handler may write to what it returned when its next batch comes."""

from __future__ import annotations

from typing import Any

import numpy as np

from kserve_torch.codec.values import is_torch

#: Immutable types.
_FIXED = frozenset((str, bytes, int, float, bool, type(None)))


def snapshot(value: Any) -> Any:
    """``value`` in memory of its own; torch tensors are moved to the host.

    Dicts, lists, tuples, bytes and arrays are copied with all that is in them; any other object is
    left as it is.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if isinstance(value, dict):
        return {key: snapshot(member) for key, member in value.items()}
    if isinstance(value, list):
        # Long lists are mostly of numbers: one check of all types instead of a call for each.
        return value[:] if _FIXED.issuperset(map(type, value)) else list(map(snapshot, value))
    if kind is tuple:
        return tuple(map(snapshot, value))
    if isinstance(value, bytearray | np.ndarray):
        return value.copy()
    if kind is memoryview:
        return bytes(value)
    return value.detach().to("cpu", copy=True) if is_torch(value) else value
