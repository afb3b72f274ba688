"""Requests of the open inference protocol (v2), in every form that it can be sent in.

========  ==========================================================================
json      the REST body: ``POST /v2/models/{model}/infer``
binary    the REST body with the tensors' bytes behind the JSON (binary tensor extension);
          needs the header ``Inference-Header-Content-Length``
grpc      for ``grpcurl``: ``ModelInferRequest`` with typed contents
grpc-raw  for ``grpcurl``: ``ModelInferRequest`` with ``raw_input_contents``
========  ==========================================================================
"""

import argparse
import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import requestfile

FORMS = ("json", "binary", "grpc", "grpc-raw")
#: Protocol name and field of ``InferTensorContents`` of the NumPy types in use.
DATATYPES = {"float32": ("FP32", "fp32_contents"), "int64": ("INT64", "int64_contents")}


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a request.

    Attributes:
        name: unique within the request.
        datatype: ``FP32``, ``INT64`` or ``BYTES``.
        shape: of the array; ``(n,)`` for n byte strings.
        data: the elements as REST's JSON has them.
        contents: the elements as gRPC's JSON has them, under the field's name.
        raw: the elements in binary: little endian, a byte string after its length in 4 bytes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any]
    contents: dict[str, list[Any]]
    raw: bytes

    @property
    def signature(self) -> dict[str, Any]:
        """What every form says of the input."""
        return {"name": self.name, "shape": list(self.shape), "datatype": self.datatype}


def array_input(name: str, array: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> Input:
    """An input of numbers; fractions are rounded to 4 digits where they are written as text."""
    datatype, field = DATATYPES[array.dtype.name]
    shown = np.round(array.astype(np.float64), 4) + 0.0 if datatype == "FP32" else array
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    contents = {field: shown.ravel().tolist()}
    return Input(name, datatype, array.shape, shown.tolist(), contents, raw)


def bytes_input(name: str, element: bytes, *, text: bool) -> Input:
    """An input of one byte string, which REST's JSON has as text or, otherwise, in base64."""
    encoded = base64.b64encode(element).decode()
    data = element.decode() if text else encoded
    raw = struct.pack("<I", len(element)) + element
    return Input(name, "BYTES", (1,), [data], {"bytes_contents": [encoded]}, raw)


def add_options(parser: argparse.ArgumentParser, model: str) -> None:
    """Add ``--form`` and ``--model``."""
    parser.add_argument("--form", choices=FORMS, default="json", help="default: %(default)s")
    parser.add_argument(
        "--model", default=model, help="the model's name, in gRPC forms (default: %(default)s)"
    )


def write(path: Path, inputs: Sequence[Input], form: str, model: str) -> None:
    """Write the request that ``form`` names."""
    if form == "binary":
        header, body = binary_request(inputs)
        requestfile.write(path, header + body)
        print(f"send with the header: Inference-Header-Content-Length: {len(header)}")
        return
    request = {"json": json_request, "grpc": grpc_request, "grpc-raw": grpc_raw_request}[form]
    named = {} if form == "json" else {"model_name": model}
    requestfile.write(path, requestfile.pretty({**named, **request(inputs)}))


def json_request(inputs: Sequence[Input]) -> dict[str, Any]:
    """The REST body."""
    return {"inputs": [{**each.signature, "data": each.data} for each in inputs]}


def binary_request(inputs: Sequence[Input]) -> tuple[bytes, bytes]:
    """The JSON header and the bytes that follow it."""
    described = [
        {**each.signature, "parameters": {"binary_data_size": len(each.raw)}} for each in inputs
    ]
    return json.dumps({"inputs": described}).encode(), b"".join(each.raw for each in inputs)


def grpc_request(inputs: Sequence[Input]) -> dict[str, Any]:
    """The message with typed contents."""
    return {"inputs": [{**each.signature, "contents": each.contents} for each in inputs]}


def grpc_raw_request(inputs: Sequence[Input]) -> dict[str, Any]:
    """The message with raw contents, which protobuf's JSON has in base64."""
    return {
        "inputs": [each.signature for each in inputs],
        "raw_input_contents": [base64.b64encode(each.raw).decode() for each in inputs],
    }
