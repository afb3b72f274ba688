"""Tensors from and to JSON data and typed gRPC contents (CONTRACT O25-O28, O31, O63).

Every reader takes ``where``, the protocol's name for the tensor (``inputs[0] "image"``), and raises
only `InvalidInput`, which begins with ``where`` and the member or element at fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from kserve_torch.codec import buffers, datatypes
from kserve_torch.codec.datatypes import Datatype
from kserve_torch.codec.document import brief
from kserve_torch.codec.elements import numbers, texts
from kserve_torch.codec.shapes import shape_from, shaped
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.messages import NOTHING, Tensor

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

    ``data`` is flat or nested in any rectangular way, with the right number of elements; a bare
    value stands for a list of it (CONTRACT O25, T-18). ``null`` in a float tensor is NaN, as in our
    own answers (CONTRACT O31). BYTES elements stay ``str`` (CONTRACT T-44). It may also be an
    array, as `large` and callers in the same process make them.

    Raises:
        InvalidInput: datatype, shape, an element or the number of elements is wrong.
    """
    kind = datatypes.find(datatype, where)
    dims = shape_from(shape, where)
    if not kind.code and kind.kind != "bytes":
        raise InvalidInput(f"{where}.data: {datatype} has no JSON form, use binary data")
    if isinstance(data, np.ndarray):
        data = data.reshape(-1)
        if data.dtype.kind not in "biuf" or kind.kind == "bytes":
            data = data.tolist()
    if isinstance(data, np.ndarray):
        values = _narrowed(data, kind, where)
    else:
        flat = _flattened(data, where) if isinstance(data, list) else [data]
        values = texts(flat, str, where) if kind.kind == "bytes" else numbers(flat, kind, where)
    array_ = shaped(values, dims, where)
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


def _narrowed(values: np.ndarray, kind: Datatype, where: str) -> np.ndarray:
    """``values`` as ``kind``, if none of them loses more than decimal places."""
    dtype = kind.dtype.newbyteorder("=")
    with suppress(FloatingPointError), np.errstate(over="raise", invalid="raise"):
        narrow = values.astype(dtype)
        if kind.kind == "float" or (narrow == values).all():
            return narrow
    return numbers(values.tolist(), kind, where)  # which names the wrong element


def in_json(tensor: Tensor) -> Tensor:
    """The tensor in a datatype with a JSON form: FP16 and BF16 become FP32 (CONTRACT T-51)."""
    if tensor.datatype == "FP16":
        values = tensor.array.astype(np.float32)
    elif tensor.datatype == "BF16":
        values = datatypes.bf16_to_fp32(tensor.array)
    else:
        return tensor
    return Tensor(name=tensor.name, datatype="FP32", array=values, parameters=tensor.parameters)


def to_json_data(tensor: Tensor) -> np.ndarray | list[str]:
    """The elements of what `in_json` returns, flat, as orjson takes them: ``OPT_SERIALIZE_NUMPY``.

    orjson writes NaN and infinities as null (CONTRACT O31).

    Raises:
        HandlerError: a BYTES element is not UTF-8.
    """
    if tensor.datatype != "BYTES":
        return np.ascontiguousarray(tensor.array).reshape(-1)
    try:
        return [
            value if isinstance(value, str) else str(value, "utf-8")
            for value in tensor.array.reshape(-1).tolist()
        ]
    except UnicodeDecodeError:
        hint = "request it as binary data"
        raise HandlerError(f'output "{tensor.name}" is not UTF-8 text; {hint}') from None


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
    is_bytes = kind.kind == "bytes"
    values = texts(contents, bytes, where) if is_bytes else numbers(contents, kind, where)
    array_ = shaped(values, dims, where)
    return Tensor(name=name, datatype=datatype, array=array_, parameters=parameters)


def to_typed(tensor: Tensor) -> list[Any]:
    """The elements, flat and row-major, for the field that `Datatype.contents` names.

    Raises:
        HandlerError: a BYTES element is text with a lone surrogate.
    """
    if tensor.datatype == "BYTES":
        return buffers.encoded(tensor)
    values: list[Any] = tensor.array.reshape(-1).tolist()
    return values
