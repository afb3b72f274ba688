"""Tensors from and to raw buffers: little-endian, row-major (CONTRACT O29, O40-O43, O62)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from kserve_torch.codec import datatypes
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.codec.elements import bools, objects
from kserve_torch.codec.shapes import shape_from, shaped
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.messages import NOTHING, Tensor

_LENGTH = struct.Struct("<I")


def tensor_from_raw(
    name: str,
    datatype: str,
    shape: object,
    buffer: bytes | memoryview,
    where: str,
    parameters: Mapping[str, Any] = NOTHING,
) -> Tensor:
    """A tensor over ``buffer``, little-endian and row-major, without a copy and so read-only.

    BYTES elements, each after its u32 length, are copied to ``bytes`` (CONTRACT O29).

    Raises:
        InvalidInput: datatype, shape, the buffer's length or an element's length is wrong.
    """
    kind = datatypes.find(datatype, where)
    dims = shape_from(shape, where)
    if kind.kind == "bytes":
        values = objects(_bytes_elements(memoryview(buffer), where))
    elif len(buffer) % (size := kind.dtype.itemsize):
        raise InvalidInput(f"{where}: {len(buffer)} bytes are not a multiple of {size}")
    elif kind.kind == "bool":
        values = bools(np.frombuffer(buffer, np.uint8), where)
    else:
        values = np.frombuffer(buffer, kind.dtype)
    array_ = shaped(values, dims, where)
    return Tensor(name=name, datatype=datatype, array=array_, parameters=parameters)


def _bytes_elements(buffer: memoryview, where: str) -> list[bytes]:
    """The length-prefixed elements of ``buffer``."""
    elements: list[bytes] = []
    offset, end = 0, len(buffer)
    while offset < end:
        start = offset + _LENGTH.size
        if start > end:
            raise InvalidInput(f"{where}.data[{len(elements)}]: its length prefix is cut short")
        offset = start + _LENGTH.unpack_from(buffer, start - _LENGTH.size)[0]
        if offset > end:
            length, left = offset - start, end - start
            fault = f"length is {length}, {left} bytes are left"
            raise InvalidInput(f"{where}.data[{len(elements)}]: {fault}")
        elements.append(bytes(buffer[start:offset]))
    return elements


def to_raw(tensor: Tensor) -> bytes | memoryview:
    """The elements as little-endian bytes; a view of the array where it is contiguous.

    Raises:
        HandlerError: a BYTES element is text with a lone surrogate.
    """
    if tensor.datatype == "BYTES":
        return b"".join(_prefixed(encoded(tensor)))
    dtype = DATATYPES[tensor.datatype].dtype
    return np.ascontiguousarray(tensor.array, dtype).reshape(-1).view(np.uint8).data


def encoded(tensor: Tensor) -> list[bytes]:
    """The elements of a BYTES tensor, flat and row-major, text in UTF-8.

    Raises:
        HandlerError: an element is text with a lone surrogate.
    """
    values: list[bytes | str] = tensor.array.reshape(-1).tolist()
    try:
        return [value.encode() if isinstance(value, str) else bytes(value) for value in values]
    except UnicodeEncodeError as error:
        raise HandlerError(f'output "{tensor.name}": {error}') from error


def _prefixed(elements: Iterable[bytes]) -> Iterable[bytes]:
    for element in elements:
        yield _LENGTH.pack(len(element))
        yield element
