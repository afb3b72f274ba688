"""Shapes of tensors: what clients may send, and arrays in that shape (CONTRACT T-18)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from kserve_torch.codec.document import brief
from kserve_torch.errors import InvalidInput

MAX_DIMS = 32
_MAX_DIM = 2**63 - 1


def shape_from(shape: object, where: str) -> tuple[int, ...]:
    """The dimensions as a tuple; a bare int is one dimension, one may be negative (CONTRACT T-18).

    Raises:
        InvalidInput: not integers, too many of them or too large, or several negative ones.
    """
    dims = [shape] if isinstance(shape, int) else shape
    if not isinstance(dims, list | tuple) or not all(type(dim) is int for dim in dims):
        raise InvalidInput(f"{where}.shape: {brief(shape)} is not a list of integers")
    if len(dims) > MAX_DIMS:
        raise InvalidInput(f"{where}.shape: {len(dims)} dimensions, at most {MAX_DIMS} are allowed")
    if max(dims, default=0) > _MAX_DIM:
        raise InvalidInput(f"{where}.shape: {brief(shape)} has a dimension over {_MAX_DIM}")
    if _is_open(dims) and sum(dim < 0 for dim in dims) > 1:
        raise InvalidInput(f"{where}.shape: {brief(shape)} leaves more than one dimension open")
    return tuple(dims)


def _is_open(shape: Sequence[int]) -> bool:
    return min(shape, default=0) < 0


def _fitted(shape: tuple[int, ...], count: int, where: str) -> tuple[int, ...]:
    """``shape`` with its open dimension filled in, checked against the number of elements."""
    if _is_open(shape):
        known = prod(dim for dim in shape if dim >= 0)
        if not known or count % known:
            raise InvalidInput(f"{where}.data: {count} elements do not fill shape {list(shape)}")
        return tuple(dim if dim >= 0 else count // known for dim in shape)
    if prod(shape) != count:
        wanted = f"shape {list(shape)} needs {prod(shape)}"
        raise InvalidInput(f"{where}.data: {count} elements, {wanted}")
    return shape


def shaped(values: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    """``values`` in its fitted shape.

    Raises:
        InvalidInput: they do not fill it, or it is too large without elements.
    """
    try:
        return values.reshape(_fitted(shape, len(values), where))
    except ValueError:  # no elements, and numpy's own limit on the other dimensions
        raise InvalidInput(f"{where}.shape: {list(shape)} is too large") from None
