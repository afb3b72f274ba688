"""Messages of the open inference protocol to tensors and back (CONTRACT O61-O64).

`decode` gives the same `V2Request` that a REST body gives, so both transports share what follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from kserve_torch.codec import buffers, datatypes, tensors, v2_reply
from kserve_torch.codec.v2 import RequestedOutput, V2Request, note_once
from kserve_torch.errors import InvalidInput
from kserve_torch.grpc import wire
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.messages import NOTHING, Tensor

_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


# --- requests -------------------------------------------------------------------------------------


def decode(message: pb.ModelInferRequest) -> V2Request:
    """Read an inference request.

    Raises:
        InvalidInput: names the tensor and what is wrong with it.
    """
    raw = message.raw_input_contents
    if not message.inputs:
        raise InvalidInput("inputs: expected at least one tensor")
    if raw and len(raw) != len(message.inputs):
        raise InvalidInput(
            f"raw_input_contents: {len(raw)} entries for {len(message.inputs)} inputs"
        )
    names: set[str] = set()
    inputs: list[Tensor] = []
    for i, tensor in enumerate(message.inputs):
        where = f'inputs[{i}] "{tensor.name}"'
        note_once(tensor.name, names, where)
        inputs.append(_raw(tensor, raw[i], where) if raw else _typed(tensor, where))
    return V2Request(
        id=message.id or None,
        parameters=parameters_from(message.parameters),
        inputs=inputs,
        outputs=_outputs(message.outputs),
        binary_output=bool(raw),
    )


def _raw(tensor: pb.ModelInferRequest.InferInputTensor, blob: bytes, where: str) -> Tensor:
    if tensor.HasField("contents"):
        raise InvalidInput(f"{where}.contents: must be absent beside raw_input_contents")
    parameters = parameters_from(tensor.parameters)
    shape = list(tensor.shape)
    return buffers.tensor_from_raw(tensor.name, tensor.datatype, shape, blob, where, parameters)


def _typed(tensor: pb.ModelInferRequest.InferInputTensor, where: str) -> Tensor:
    kind = datatypes.find(tensor.datatype, where)
    field = kind.contents
    others = [used.name for used, _ in tensor.contents.ListFields() if used.name != field]
    if field and others:
        raise InvalidInput(f"{where}.contents: {tensor.datatype} goes in {field}, not {others[0]}")
    head = (tensor.name, tensor.datatype, list(tensor.shape))
    parameters = parameters_from(tensor.parameters)
    elements = getattr(tensor.contents, field) if field else ()
    if field in _PACKED:
        raw = _packed(tensor.contents, kind.dtype.itemsize * len(elements))
        return buffers.tensor_from_raw(*head, raw, where, parameters)
    return tensors.tensor_from_typed(*head, elements, where, parameters)


#: The numbers of the fields of `InferTensorContents` whose elements are stored in the message as in
#: memory. Copying them as bytes is some fifty times as fast as one by one.
_PACKED = {
    field.name: field.number
    for field in pb.InferTensorContents.DESCRIPTOR.fields
    if field.name in ("bool_contents", "fp32_contents", "fp64_contents")
}


def _packed(contents: pb.InferTensorContents, size: int) -> bytes:
    """The ``size`` bytes of the elements of contents with a single field, a packed one."""
    contents.DiscardUnknownFields()
    message = contents.SerializeToString()
    return message[len(message) - size :]


def _outputs(
    outputs: Sequence[pb.ModelInferRequest.InferRequestedOutputTensor],
) -> list[RequestedOutput] | None:
    """The selection of outputs; none means all (CONTRACT O24)."""
    if not outputs:
        return None
    names: set[str] = set()
    for i, output in enumerate(outputs):
        note_once(output.name, names, f'outputs[{i}] "{output.name}"')
    return [RequestedOutput(name=output.name) for output in outputs]


def parameters_from(parameters: Mapping[str, pb.InferParameter]) -> Mapping[str, Any]:
    """Parameters as Python values, without those that hold no known kind."""
    if not parameters:
        return NOTHING
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], kind) for name, kind in chosen.items() if kind}


# --- responses ------------------------------------------------------------------------------------

_RAW = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER


def encode(
    model_name: str,
    model_version: str,
    id: str,
    outputs: Sequence[Tensor],
    request: V2Request,
    parameters: Mapping[str, Any] = NOTHING,
) -> bytes:
    """The encoded response with the outputs that ``request`` selects.

    The outputs are raw if the inputs were, or if one has a datatype without a typed form: FP16 or
    BF16 (CONTRACT O64).

    Raises:
        InvalidInput: the request selects an output that does not exist.
    """
    selected = [tensor for tensor, _ in v2_reply.select(outputs, request)]
    response = pb.ModelInferResponse(
        model_name=model_name,
        model_version=model_version,
        id=id,
        parameters=parameters_to(parameters),
        outputs=[_head(tensor) for tensor in selected],
    )
    fields = [datatypes.DATATYPES[tensor.datatype].contents for tensor in selected]
    if request.binary_output or not all(fields):
        blobs = (wire.field(_RAW, buffers.to_raw(tensor)) for tensor in selected)
        return b"".join((response.SerializeToString(), *chain.from_iterable(blobs)))
    for output, tensor, field in zip(response.outputs, selected, fields, strict=True):
        output.contents.SetInParent()
        if field in _PACKED:
            packed = wire.field(_PACKED[field], buffers.to_raw(tensor))
            output.contents.MergeFromString(b"".join(packed))
        else:
            getattr(output.contents, field).extend(tensors.to_typed(tensor))
    return response.SerializeToString()


def _head(tensor: Tensor) -> pb.ModelInferResponse.InferOutputTensor:
    """An output without its elements."""
    return pb.ModelInferResponse.InferOutputTensor(
        name=tensor.name,
        datatype=tensor.datatype,
        shape=tensor.shape,
        parameters=parameters_to(tensor.parameters),
    )


def parameters_to(parameters: Mapping[str, Any]) -> dict[str, pb.InferParameter]:
    """Parameters as messages; values other than bools, numbers and strings go as their text."""
    return {str(name): _parameter(value) for name, value in parameters.items()}


def _parameter(value: Any) -> pb.InferParameter:
    match value:
        case bool():
            return pb.InferParameter(bool_param=value)
        case int() if value in _INT64:
            return pb.InferParameter(int64_param=value)
        case int() if value in _UINT64:
            return pb.InferParameter(uint64_param=value)
        case float():
            return pb.InferParameter(double_param=value)
        case _:
            return pb.InferParameter(string_param=str(value))
