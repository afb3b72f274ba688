"""Elements of tensors: Python values to arrays, or an error that names the wrong element.

Every reader takes ``where``: the tensor as the protocol names it (``inputs[0] "image"``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kserve_torch.codec.datatypes import Datatype
from kserve_torch.codec.document import brief
from kserve_torch.errors import InvalidInput


def numbers(flat: Iterable[Any], kind: Datatype, where: str) -> np.ndarray:
    """A one-dimensional array of ``kind``; `array.array` refuses what would lose information."""
    flat = flat if isinstance(flat, list) else list(flat)
    try:
        values = np.frombuffer(array(kind.code, flat), kind.dtype.newbyteorder("="))
    except (TypeError, OverflowError):
        if kind.kind == "float" and None in flat:
            nan = float("nan")
            return numbers([nan if value is None else value for value in flat], kind, where)
        raise _wrong_element(flat, kind, where) from None
    if kind.kind == "bool":
        return bools(values.view(np.uint8), where)
    if kind.name == "FP32":
        _refuse_overflow(flat, values, where)
    return values


def _wrong_element(flat: list[Any], kind: Datatype, where: str) -> InvalidInput:
    """The error that names the first element which is no ``kind``."""
    first, end = 0, len(flat)  # it is between these; asked one by one, millions took seconds
    while end - first > 1:
        middle = (first + end) // 2
        if _fit(flat[first:middle], kind):
            first = middle
        else:
            end = middle
    article = "an" if kind.name[0] in "IF" else "a"
    return InvalidInput(f"{where}.data[{first}]: {brief(flat[first])} is not {article} {kind.name}")


def _fit(values: list[Any], kind: Datatype) -> bool:
    try:
        array(kind.code, values)
    except (TypeError, OverflowError):
        return False
    return True


def bools(values: np.ndarray, where: str) -> np.ndarray:
    """Bytes 0 and 1 as booleans (CONTRACT O26, O43)."""
    if values.size and values.max() > 1:
        i = int(np.argmax(values > 1))
        raise InvalidInput(f"{where}.data[{i}]: {values[i]} is not a BOOL (true, false, 1 or 0)")
    return values.view(np.bool_)


def _refuse_overflow(flat: list[Any], values: np.ndarray, where: str) -> None:
    """Refuse finite numbers that became infinite; `array.array` lets them pass."""
    for i in np.flatnonzero(np.isinf(values)):
        if flat[i] not in (float("inf"), float("-inf")):
            raise InvalidInput(f"{where}.data[{i}]: {brief(flat[i])} is out of range of FP32")


def texts(flat: Iterable[Any], kind: type[str] | type[bytes], where: str) -> np.ndarray:
    """BYTES elements, if all are of this kind."""
    flat = flat if isinstance(flat, list) else list(flat)
    for i, value in enumerate(flat):
        if not isinstance(value, kind):
            wanted = "a string" if kind is str else "bytes"
            raise InvalidInput(f"{where}.data[{i}]: {brief(value)} is not {wanted}")
    return objects(flat)


def objects(elements: Sequence[str | bytes]) -> np.ndarray:
    """BYTES elements as a one-dimensional array."""
    values = np.empty(len(elements), object)
    values[:] = elements
    return values
