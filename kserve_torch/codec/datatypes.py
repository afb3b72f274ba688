"""The open inference protocol's datatypes and what each is in numpy (CONTRACT O27)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kserve_torch.codec.document import brief
from kserve_torch.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Datatype:
    """One datatype of the protocol.

    Attributes:
        name: ``FP32``, ``INT64``, ``BYTES``, ...
        kind: ``bool``, ``uint``, ``int``, ``float`` or ``bytes``.
        dtype: little-endian numpy type of the elements; ``uint16`` bit patterns for BF16.
        code: `array.array` type code that converts and checks Python numbers; "" for datatypes
            that JSON and typed gRPC contents do not have (CONTRACT O28, O63).
        contents: the field of ``InferTensorContents`` that carries it; "" if only raw does.
    """

    name: str
    kind: str
    dtype: np.dtype[Any]
    code: str = ""
    contents: str = ""


DATATYPES: dict[str, Datatype] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", "bool", np.dtype("?"), "B", "bool_contents"),
        Datatype("UINT8", "uint", np.dtype("<u1"), "B", "uint_contents"),
        Datatype("UINT16", "uint", np.dtype("<u2"), "H", "uint_contents"),
        Datatype("UINT32", "uint", np.dtype("<u4"), "I", "uint_contents"),
        Datatype("UINT64", "uint", np.dtype("<u8"), "Q", "uint64_contents"),
        Datatype("INT8", "int", np.dtype("<i1"), "b", "int_contents"),
        Datatype("INT16", "int", np.dtype("<i2"), "h", "int_contents"),
        Datatype("INT32", "int", np.dtype("<i4"), "i", "int_contents"),
        Datatype("INT64", "int", np.dtype("<i8"), "q", "int64_contents"),
        Datatype("FP16", "float", np.dtype("<f2")),
        Datatype("BF16", "float", np.dtype("<u2")),
        Datatype("FP32", "float", np.dtype("<f4"), "f", "fp32_contents"),
        Datatype("FP64", "float", np.dtype("<f8"), "d", "fp64_contents"),
        Datatype("BYTES", "bytes", np.dtype(object), "", "bytes_contents"),
    )
}

_BY_DTYPE: dict[np.dtype[Any], str] = {
    datatype.dtype: datatype.name for datatype in DATATYPES.values() if datatype.name != "BF16"
}


def find(name: object, where: str) -> Datatype:
    """The datatype called ``name``.

    Raises:
        InvalidInput: there is none; the text starts with ``where``.
    """
    datatype = DATATYPES.get(name) if isinstance(name, str) else None
    if datatype is None:
        raise InvalidInput(f"{where}.datatype: {brief(name)} is not one of {', '.join(DATATYPES)}")
    return datatype


def of_dtype(dtype: np.dtype[Any]) -> str | None:
    """Name of the datatype that holds arrays of ``dtype``, or None if no datatype does."""
    return _BY_DTYPE.get(dtype.newbyteorder("<"))


def bf16_to_fp32(bits: np.ndarray) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Float32 values of bfloat16 bit patterns; exact, because BF16 is the upper half of FP32."""
    upper = np.asarray(bits.astype(np.uint32) << np.uint32(16))  # numpy makes scalars of scalars
    return upper.view(np.float32)


def fp32_to_bf16(values: np.ndarray) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Bfloat16 bit patterns of float32 values that came from bfloat16: their upper halves."""
    upper = np.ascontiguousarray(values, np.float32).view(np.uint32) >> np.uint32(16)
    return upper.astype(np.uint16).reshape(values.shape)
