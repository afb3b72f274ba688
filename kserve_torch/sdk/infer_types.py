"""Converts KServe's `InferRequest` to our request, and our outputs to `InferResponse`.

The SDK's own conversions lose or refuse some of what the protocol allows, so a response is given
only the selected outputs, in the form in which they are to be sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse
from kserve.protocol.infer_type import RequestedOutput, to_http_parameters

from kserve_torch.codec import buffers, tensors, v2, v2_reply
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.codec.elements import objects
from kserve_torch.codec.v2 import SIZE, V2Request
from kserve_torch.errors import InvalidInput
from kserve_torch.messages import Tensor


def decode(request: InferRequest) -> V2Request:
    """KServe's request as ours.

    Raises:
        InvalidInput: names the tensor and what is wrong with it.
    """
    if not request.inputs:
        raise InvalidInput("inputs: expected at least one tensor")
    _check_names("inputs", request.inputs)
    inputs = [_tensor(i, one, request.from_grpc) for i, one in enumerate(request.inputs)]
    return V2Request(
        id=request.id or None,
        parameters=_parameters(request.parameters),
        inputs=inputs,
        outputs=_requested(request.request_outputs),
        binary_output=request.use_binary_outputs,
    )


def _check_names(key: str, members: Sequence[Any]) -> None:
    """Refuse duplicate names: the answer could not tell their tensors apart."""
    names: set[str] = set()
    for i, one in enumerate(members):
        v2.note_once(one.name, names, f'{key}[{i}] "{one.name}"')


def _tensor(index: int, given: Any, from_grpc: bool) -> Tensor:
    where = f'inputs[{index}] "{given.name}"'
    parameters = {k: v for k, v in _parameters(given.parameters).items() if k != SIZE}
    head = (given.name, given.datatype, list(given.shape))
    raw = given._raw_data
    if raw is None and given.datatype == "FP16" and not from_grpc:
        # It came as binary data, the only form that the SDK accepts, and was read already.
        raw = np.asarray(given.data, np.float16).tobytes()
    if raw is not None:
        return buffers.tensor_from_raw(*head, raw, where, parameters)
    read = tensors.tensor_from_typed if from_grpc else tensors.tensor_from_json
    return read(*head, given.data, where, parameters)


def _requested(outputs: Any) -> Sequence[v2.RequestedOutput] | None:
    if not outputs:
        return None
    _check_names("outputs", outputs)
    return [
        v2.RequestedOutput(
            name=one.name,
            # The SDK's own `binary_data` leaves gRPC's parameters unconverted.
            binary=_parameters(one.parameters).get("binary_data"),
        )
        for one in outputs
    ]


def _parameters(parameters: Any) -> Mapping[str, Any]:
    return to_http_parameters(parameters) if parameters else {}


def encode(
    model: str,
    version: str | None,
    id: str,
    outputs: Sequence[Tensor],
    request: V2Request,
    parameters: Mapping[str, Any],
    *,
    from_grpc: bool,
) -> InferResponse:
    """Our outputs, as far as ``request`` selects them, as KServe's response.

    Raises:
        InvalidInput: the request selects an output that there is not.
    """
    chosen = list(v2_reply.select(outputs, request))
    raw = request.binary_output or not all(DATATYPES[one.datatype].contents for one, _ in chosen)
    return InferResponse(
        response_id=id,
        model_name=model,
        model_version=version,
        infer_outputs=[
            _grpc_output(tensor, raw) if from_grpc else _rest_output(tensor, binary)
            for tensor, binary in chosen
        ],
        parameters=dict(parameters) or None,
        use_binary_outputs=raw,
        requested_outputs=[
            RequestedOutput(tensor.name, {"binary_data": binary}) for tensor, binary in chosen
        ],
    )


def _grpc_output(tensor: Tensor, raw: bool) -> InferOutput:
    output = _head(tensor)
    if raw:
        output._raw_data = bytes(buffers.to_raw(tensor))
    else:
        output.data = tensors.to_typed(tensor)
    return output


def _rest_output(tensor: Tensor, binary: bool) -> InferOutput:
    """One output as an array, which the SDK sends as JSON or as binary data; it knows no BF16."""
    if tensor.datatype == "BF16" or not binary:
        tensor = tensors.in_json(tensor)
    output = _head(tensor)
    output.data = _array(tensor)
    return output


def _head(tensor: Tensor) -> InferOutput:
    output = InferOutput(tensor.name, list(tensor.shape), tensor.datatype)
    output.parameters = dict(tensor.parameters)
    return output


def _array(tensor: Tensor) -> np.ndarray:
    """The elements as the SDK serialises them: those of BYTES all as bytes."""
    if tensor.datatype != "BYTES":
        return tensor.array
    return objects(tensors.to_typed(tensor)).reshape(tensor.shape)
