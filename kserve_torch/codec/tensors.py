"""Tensors from and to JSON data, raw buffers and typed gRPC contents (CONTRACT O25-O29, O62, O63).

Every reader takes ``where``, how the protocol names the tensor (``inputs[0] "image"``), and raises
only `InvalidInput`, with ``where`` and the offending member or element in front.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from types import UnionType
from typing import Any

import numpy as np

from kserve_torch.codec import datatypes
from kserve_torch.codec.datatypes import DATATYPES, Datatype
from kserve_torch.codec.document import brief
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.messages import NOTHING, Tensor

Array = np.ndarray[Any, Any]

MAX_DIMS = 32
_MAX_DIM = 2**63 - 1
_LENGTH = struct.Struct("<I")


# --- shapes ---------------------------------------------------------------------------------------


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


def _shaped(values: Array, shape: tuple[int, ...], where: str) -> Array:
    """``values`` in its fitted shape."""
    fitted = _fitted(shape, len(values), where)
    try:
        return values.reshape(fitted)
    except ValueError:  # no elements, and numpy's own limit on the other dimensions
        raise InvalidInput(f"{where}.shape: {list(shape)} is too large") from None


# --- JSON -----------------------------------------------------------------------------------------


def tensor_from_json(
    name: str,
    datatype: str,
    shape: object,
    data: object,
    where: str,
    parameters: Mapping[str, Any] = NOTHING,
) -> Tensor:
    """A tensor from parsed JSON.

    ``data`` is flat or nested, any rectangular nesting of the right number of elements will do; a
    bare value stands for a list of it (CONTRACT O25, T-18). ``null`` in a float tensor is NaN, as
    in our own answers (CONTRACT O31). BYTES elements stay ``str`` (CONTRACT T-44). A flat array of
    the widest numbers of the datatype's kind will do as well (`large`).

    Raises:
        InvalidInput: datatype, shape, an element or the number of elements is wrong.
    """
    kind = datatypes.find(datatype, where)
    dims = shape_from(shape, where)
    if not kind.code and kind.kind != "bytes":
        raise InvalidInput(f"{where}.data: {datatype} has no JSON form, use binary data")
    if isinstance(data, np.ndarray):
        values = _narrowed(data, kind, where)
    else:
        flat = _flattened(data, where) if isinstance(data, list) else [data]
        if kind.kind == "bytes":
            values = _objects(flat, str, "a string", where)
        else:
            values = _numbers(flat, kind, where)
    array_ = _shaped(values, dims, where)
    return Tensor(name=name, datatype=datatype, array=array_, parameters=parameters)


def _flattened(data: list[Any], where: str) -> list[Any]:
    """``data`` without its nesting, which must be rectangular."""
    while data and type(data[0]) is list:
        width = len(data[0])
        for i, part in enumerate(data):
            if type(part) is not list or len(part) != width:
                got = f"{len(part)} elements" if type(part) is list else brief(part)
                raise InvalidInput(f"{where}.data: ragged, {got} at {i} beside {width} elements")
        data = list(chain.from_iterable(data))
    return data


def _narrowed(values: Array, kind: Datatype, where: str) -> Array:
    """``values`` as ``kind``, if none of them loses more than digits behind the point by it."""
    dtype = kind.dtype.newbyteorder("=")
    try:
        with np.errstate(over="raise"):
            narrow = values.astype(dtype)  # a copy: handlers may write
    except FloatingPointError:
        return _numbers(values.tolist(), kind, where)
    whole = kind.kind == "float" or (narrow == values).all()
    return narrow if whole else _numbers(values.tolist(), kind, where)


def _numbers(flat: Iterable[Any], kind: Datatype, where: str) -> Array:
    """A one-dimensional array of ``kind``; `array.array` refuses what would lose information."""
    flat = flat if isinstance(flat, list) else list(flat)
    try:
        values = np.frombuffer(array(kind.code, flat), kind.dtype.newbyteorder("="))
    except (TypeError, OverflowError):
        if kind.kind == "float" and None in flat:
            nan = float("nan")
            return _numbers([nan if value is None else value for value in flat], kind, where)
        raise _wrong_element(flat, kind, where) from None
    if kind.kind == "bool":
        return _bools(values.view(np.uint8), where)
    if kind.name == "FP32" and np.isinf(values).any():
        _refuse_overflow(flat, values, where)
    return values


def _wrong_element(flat: list[Any], kind: Datatype, where: str) -> InvalidInput:
    """The error that names the first element which is no ``kind``."""
    i = next(i for i, value in enumerate(flat) if not _fits(value, kind))
    article = "an" if kind.name[0] in "IF" else "a"
    return InvalidInput(f"{where}.data[{i}]: {brief(flat[i])} is not {article} {kind.name}")


def _fits(value: Any, kind: Datatype) -> bool:
    try:
        array(kind.code, [value])
    except (TypeError, OverflowError):
        return False
    return True


def _bools(values: Array, where: str) -> Array:
    """Bytes 0 and 1 as booleans (CONTRACT O26, O43)."""
    if values.size and values.max() > 1:
        i = int(np.argmax(values > 1))
        raise InvalidInput(f"{where}.data[{i}]: {values[i]} is not a BOOL (true, false, 1 or 0)")
    return values.view(np.bool_)


def _refuse_overflow(flat: list[Any], values: Array, where: str) -> None:
    """Refuse finite numbers that became infinite; `array.array` lets them pass."""
    for i in np.flatnonzero(np.isinf(values)):
        if flat[i] not in (float("inf"), float("-inf")):
            raise InvalidInput(f"{where}.data[{i}]: {brief(flat[i])} is out of range of FP32")


def _objects(flat: Iterable[Any], allowed: type | UnionType, wanted: str, where: str) -> Array:
    """BYTES elements as a one-dimensional object array."""
    flat = flat if isinstance(flat, list) else list(flat)
    for i, value in enumerate(flat):
        if not isinstance(value, allowed):
            raise InvalidInput(f"{where}.data[{i}]: {brief(value)} is not {wanted}")
    values = np.empty(len(flat), object)
    values[:] = flat
    return values


def in_json(tensor: Tensor) -> Tensor:
    """The tensor in a datatype that JSON has: FP16 and BF16 become FP32 (CONTRACT T-51)."""
    if tensor.datatype == "FP16":
        values = tensor.array.astype(np.float32)
    elif tensor.datatype == "BF16":
        values = datatypes.bf16_to_fp32(tensor.array)
    else:
        return tensor
    return Tensor(name=tensor.name, datatype="FP32", array=values, parameters=tensor.parameters)


def to_json_data(tensor: Tensor) -> Array | list[str]:
    """The elements, flat and row-major, as orjson takes them with ``OPT_SERIALIZE_NUMPY``.

    orjson writes NaN and infinities as null (CONTRACT O31).

    Raises:
        HandlerError: a BYTES element is not UTF-8, or the tensor was not passed through `in_json`.
    """
    if tensor.datatype != "BYTES":
        if not DATATYPES[tensor.datatype].code:
            raise HandlerError(f'output "{tensor.name}": {tensor.datatype} has no JSON form')
        return np.ascontiguousarray(tensor.array).reshape(-1)
    try:
        return [
            value if isinstance(value, str) else str(value, "utf-8")
            for value in tensor.array.reshape(-1).tolist()
        ]
    except UnicodeDecodeError:
        hint = "request it as binary data"
        raise HandlerError(f'output "{tensor.name}" is not UTF-8 text; {hint}') from None


# --- raw ------------------------------------------------------------------------------------------


def tensor_from_raw(
    name: str,
    datatype: str,
    shape: object,
    buffer: bytes | memoryview,
    where: str,
    parameters: Mapping[str, Any] = NOTHING,
) -> Tensor:
    """A tensor over ``buffer``, little-endian and row-major, without a copy and so read-only.

    BYTES elements, each behind its u32 length, are copied out as ``bytes`` (CONTRACT O29).

    Raises:
        InvalidInput: datatype, shape, the buffer's length or an element's length is wrong.
    """
    kind = datatypes.find(datatype, where)
    dims = shape_from(shape, where)
    if kind.kind == "bytes":
        values = _objects(_bytes_elements(memoryview(buffer), where), bytes, "bytes", where)
    elif len(buffer) % kind.size:
        raise InvalidInput(f"{where}: {len(buffer)} bytes are no multiple of {kind.size}")
    elif kind.kind == "bool":
        values = _bools(np.frombuffer(buffer, np.uint8), where)
    else:
        values = np.frombuffer(buffer, kind.dtype)
    array_ = _shaped(values, dims, where)
    return Tensor(name=name, datatype=datatype, array=array_, parameters=parameters)


def bytes_tensor(name: str, elements: Sequence[bytes | str], shape: object, where: str) -> Tensor:
    """A BYTES tensor of elements that are at hand already.

    Raises:
        InvalidInput: their number does not fill ``shape``.
    """
    values = _objects(elements, bytes | str, "bytes or a string", where)
    dims = shape_from(shape, where)
    return Tensor(name=name, datatype="BYTES", array=_shaped(values, dims, where))


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
            told, left = offset - start, end - start
            raise InvalidInput(f"{where}.data[{len(elements)}]: {told} bytes told, {left} left")
        elements.append(bytes(buffer[start:offset]))
    return elements


def to_raw(tensor: Tensor) -> bytes | memoryview:
    """The elements as little-endian bytes; a view of the array where it is contiguous."""
    if tensor.datatype == "BYTES":
        return b"".join(_prefixed(tensor.array.reshape(-1).tolist()))
    dtype = DATATYPES[tensor.datatype].dtype
    flat = np.ascontiguousarray(tensor.array, dtype).reshape(-1)
    return flat.view(np.uint8).data if flat.size else b""


def _prefixed(values: Iterable[bytes | str]) -> Iterable[bytes]:
    for value in values:
        element = value.encode() if isinstance(value, str) else value
        yield _LENGTH.pack(len(element))
        yield element


# --- typed gRPC contents --------------------------------------------------------------------------


def tensor_from_typed(
    name: str,
    datatype: str,
    shape: object,
    contents: Sequence[Any],
    where: str,
    parameters: Mapping[str, Any] = NOTHING,
) -> Tensor:
    """A tensor from the elements of its ``*_contents`` field (CONTRACT O63).

    Raises:
        InvalidInput: datatype, shape, an element or the number of elements is wrong.
    """
    kind = datatypes.find(datatype, where)
    dims = shape_from(shape, where)
    if not kind.contents:
        raise InvalidInput(f"{where}.contents: {datatype} goes in raw_input_contents only")
    values = (
        _objects(contents, bytes, "bytes", where)
        if kind.kind == "bytes"
        else _numbers(contents, kind, where)
    )
    array_ = _shaped(values, dims, where)
    return Tensor(name=name, datatype=datatype, array=array_, parameters=parameters)


def to_typed(tensor: Tensor) -> list[Any]:
    """The elements, flat and row-major, for the field that `Datatype.contents` names."""
    values: list[Any] = tensor.array.reshape(-1).tolist()
    if tensor.datatype != "BYTES":
        return values
    return [value.encode() if isinstance(value, str) else bytes(value) for value in values]
