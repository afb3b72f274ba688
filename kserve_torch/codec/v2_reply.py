"""Open inference protocol responses, as JSON and with binary tensor data (CONTRACT 1.2, 1.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson

from kserve_torch.codec import buffers, tensors
from kserve_torch.codec.v2 import SIZE, V2Request
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.messages import NOTHING, Tensor


def encode(
    model_name: str,
    model_version: str,
    id: str,
    outputs: Sequence[Tensor],
    request: V2Request,
    parameters: Mapping[str, Any] = NOTHING,
) -> tuple[bytes, int | None]:
    """The response body, and the length of its JSON part if binary data follows it.

    Without parameters that member is absent, never null (CONTRACT O22). FP16 and BF16 are sent as
    FP32 unless they were asked for in binary (CONTRACT T-51).

    Raises:
        InvalidInput: the request selects an output that does not exist.
        HandlerError: an output's text is not UTF-8 and must be in JSON, or has a lone surrogate.
    """
    blobs: list[bytes | memoryview] = []
    answer: dict[str, Any] = {"id": id, "model_name": model_name, "model_version": model_version}
    if parameters:
        answer["parameters"] = dict(parameters)
    answer["outputs"] = [
        _binary_output(tensor, blobs) if binary else _json_output(tensor)
        for tensor, binary in select(outputs, request)
    ]
    header = _json(answer)
    if not blobs:
        return header, None
    return b"".join((header, *blobs)), len(header)


def _json(answer: dict[str, Any]) -> bytes:
    """The answer's JSON.

    Raises:
        HandlerError: names the output that has a lone surrogate.
    """
    try:
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        for output in answer["outputs"]:
            with suppress(TypeError):
                orjson.dumps(output, option=orjson.OPT_SERIALIZE_NUMPY)
                continue
            raise HandlerError(f'output "{output["name"]}": {error}') from error
        raise HandlerError(f"parameters: {error}") from error


def select(outputs: Sequence[Tensor], request: V2Request) -> Iterator[tuple[Tensor, bool]]:
    """The outputs to send and whether each goes as binary data (CONTRACT O24, O42).

    Raises:
        InvalidInput: the request names an output that does not exist.
    """
    if request.outputs is None:
        yield from ((tensor, request.binary_output) for tensor in outputs)
        return
    by_name = {tensor.name: tensor for tensor in outputs}
    for i, wanted in enumerate(request.outputs):
        tensor = by_name.get(wanted.name)
        if tensor is None:
            known = ", ".join(by_name)
            raise InvalidInput(f'outputs[{i}]: no output "{wanted.name}", there is {known}')
        yield tensor, request.binary_output if wanted.binary is None else wanted.binary


def _json_output(tensor: Tensor) -> dict[str, Any]:
    tensor = tensors.in_json(tensor)
    return _output(tensor, tensor.parameters, {"data": tensors.to_json_data(tensor)})


def _binary_output(tensor: Tensor, blobs: list[bytes | memoryview]) -> dict[str, Any]:
    blob = buffers.to_raw(tensor)
    blobs.append(blob)
    return _output(tensor, {**tensor.parameters, SIZE: len(blob)}, {})


def _output(
    tensor: Tensor, parameters: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
    """One output, its members in TorchServe's order (CONTRACT Q18)."""
    output = {"name": tensor.name, "datatype": tensor.datatype, **data, "shape": tensor.shape}
    return {**output, "parameters": dict(parameters)} if parameters else output
