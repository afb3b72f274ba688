"""Open inference protocol requests, as JSON and with binary tensor data (CONTRACT 1.2, 1.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kserve_torch.codec import buffers, document, large, tensors
from kserve_torch.codec.cloudevents import Event
from kserve_torch.codec.rows import TARGET
from kserve_torch.errors import InvalidInput
from kserve_torch.frozen import frozen
from kserve_torch.messages import NOTHING, Tensor, Verb

SIZE = "binary_data_size"
_RAW_INPUT: Mapping[str, Any] = {"name": "input-0", "datatype": "BYTES", "shape": [1]}


@frozen(kw_only=True)
class RequestedOutput:
    """One member of a request's ``outputs``; ``binary`` None means the request's default."""

    name: str
    binary: bool | None = None


@frozen(kw_only=True)
class V2Request:
    """A decoded inference request.

    Attributes:
        id: the client's id, or None if it sent none.
        inputs: at least one, each name once.
        outputs: the outputs to send, in this order; None means all.
        binary_output: whether outputs that do not say otherwise are sent as binary data.
        event: the structured CloudEvent around the body, or None; only v1's routes take one.
    """

    inputs: Sequence[Tensor]
    id: str | None = None
    parameters: Mapping[str, Any] = NOTHING
    outputs: Sequence[RequestedOutput] | None = None
    binary_output: bool = False
    event: Event | None = None


def decode(
    body: bytes | memoryview,
    header_length: str | int | None = None,
    declared: Sequence[Mapping[str, Any]] = (),
) -> V2Request:
    """Read a request body, whatever its content type says (CONTRACT T-08).

    Args:
        body: the whole body, decoded from its content coding (CONTRACT O45).
        header_length: ``Inference-Header-Content-Length``: the length of the JSON part in front of
            the binary data (CONTRACT O40); 0 means that all of ``body`` is one tensor's data.
        declared: name, datatype and shape of the model's inputs, which describe that one tensor
            (CONTRACT O44); it is BYTES if there are none. BYTES is one element without a length.

    Raises:
        InvalidInput: names the member, tensor or element at fault.
    """
    if header_length is None:
        return from_document(_parsed(body))
    view = memoryview(body)
    length = _header_length(header_length, len(view))
    if length == 0:
        return V2Request(inputs=[_raw_tensor(view, declared)], binary_output=True)
    return from_document(_json_part(view[:length]), view[length:])


def _parsed(body: bytes | memoryview) -> Mapping[str, Any]:
    return large.parse_object(body) or document.parse_object(body)


def _json_part(body: memoryview) -> Mapping[str, Any]:
    """The JSON before the binary data; the client says where that begins."""
    try:
        return _parsed(body)
    except InvalidInput as error:
        raise InvalidInput(
            f"{error.message}; the JSON should be the first {len(body)} bytes of the body "
            "(Inference-Header-Content-Length)"
        ) from None


def _header_length(value: str | int, body_length: int) -> int:
    """The length as a number within the body."""
    text = str(value).strip()
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(f"Inference-Header-Content-Length: {text[:40]!r} is not a length")
    if len(text) > 18 or int(text) > body_length:
        raise InvalidInput(
            f"Inference-Header-Content-Length: {text[:40]} is over the body's {body_length} bytes"
        )
    return int(text)


def _raw_tensor(body: memoryview, declared: Sequence[Mapping[str, Any]]) -> Tensor:
    """The single tensor of a raw binary request."""
    if len(declared) > 1:
        raise InvalidInput(
            "Inference-Header-Content-Length: 0 makes the body one tensor, "
            f"the model has {len(declared)} inputs"
        )
    described = declared[0] if declared else _RAW_INPUT
    name, datatype, shape = described["name"], described["datatype"], described["shape"]
    where = f'inputs[0] "{name}"'
    if datatype == "BYTES":
        return tensors.tensor_from_typed(name, datatype, shape, [bytes(body)], where)
    return buffers.tensor_from_raw(name, datatype, shape, body, where)


def from_document(request: Mapping[str, Any], blobs: bytes | memoryview = b"") -> V2Request:
    """Read a request that is parsed already, with the binary data that followed it.

    Raises:
        InvalidInput: names the member, tensor or element at fault.
    """
    id_ = request.get("id")
    if id_ is not None and not isinstance(id_, str):
        raise InvalidInput(f"id: expected a string, got {document.kind_of(id_)}")
    if id_ is not None and not document.is_sendable(id_):
        raise InvalidInput("id: holds a lone surrogate")
    parameters = document.parameters_of(request)
    return V2Request(
        id=id_,
        parameters=parameters,
        inputs=_inputs(request.get("inputs"), memoryview(blobs)),
        outputs=_outputs(request.get("outputs")),
        binary_output=_flag(parameters, "binary_data_output", "parameters") or False,
    )


def _inputs(inputs: object, blobs: memoryview) -> list[Tensor]:
    """The input tensors; together they use up ``blobs`` (CONTRACT O41)."""
    decoded: list[Tensor] = []
    names: set[str] = set()
    offset = 0
    for i, name, member in _named_members(inputs, "inputs"):
        where = f'inputs[{i}] "{name}"'
        note_once(name, names, where)
        size = _binary_size(member, where)
        decoded.append(_input(name, member, size, blobs[offset:], where))
        offset += size or 0
    if not decoded:
        raise InvalidInput("inputs: expected at least one tensor")
    if offset != len(blobs):
        raise InvalidInput(f"inputs: {len(blobs) - offset} bytes of binary data belong to no input")
    return decoded


def _named_members(members: object, key: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Index, name and value of each object in a list that is ``request[key]``."""
    if members is None:
        raise InvalidInput(f"{key}: missing")
    if not isinstance(members, list):
        raise InvalidInput(f"{key}: expected a list of tensors, got {document.kind_of(members)}")
    for i, member in enumerate(members):
        if not isinstance(member, dict):
            raise InvalidInput(f"{key}[{i}]: expected a tensor, got {document.kind_of(member)}")
        name = member.get("name")
        if not isinstance(name, str):
            got = document.kind_of(name) if "name" in member else "nothing"
            raise InvalidInput(f"{key}[{i}].name: expected a string, got {got}")
        if not document.is_sendable(name):
            raise InvalidInput(f"{key}[{i}].name: holds a lone surrogate")
        yield i, name, member


def note_once(name: str, names: set[str], where: str) -> None:
    """Add ``name`` to ``names``.

    Raises:
        InvalidInput: it was there already.
    """
    if name in names:
        raise InvalidInput(f"{where}: duplicate name")
    names.add(name)


def _binary_size(member: Mapping[str, Any], where: str) -> int | None:
    """``parameters.binary_data_size``, or None for an input whose data is in the JSON."""
    size = document.parameters_of(member, where).get(SIZE)
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise InvalidInput(
            f"{where}.parameters.{SIZE}: {document.brief(size)} is not a number of bytes"
        )
    if member.get("data") is not None:  # KServe's client sends null beside an empty tensor's size
        raise InvalidInput(f"{where}: has both data and {SIZE}")
    return size


def _input(
    name: str, member: Mapping[str, Any], size: int | None, blobs: memoryview, where: str
) -> Tensor:
    """One input, from its JSON data or from the first ``size`` bytes of ``blobs``."""
    for key in ("shape", "datatype") if size is not None else ("shape", "datatype", "data"):
        if member.get(key) is None:  # null is absent, not one NaN
            raise InvalidInput(f"{where}.{key}: missing")
    shape, datatype = member["shape"], member["datatype"]
    parameters = document.parameters_of(member, where)
    if TARGET in member:  # where TorchServe's clients put it
        parameters = {**parameters, TARGET: member[TARGET]}
    if size is None:
        data = member["data"]
        return tensors.tensor_from_json(name, datatype, shape, data, where, parameters)
    if size > len(blobs):
        raise InvalidInput(f"{where}: {SIZE} is {size}, {len(blobs)} bytes are left in the body")
    parameters = {key: value for key, value in parameters.items() if key != SIZE}
    return buffers.tensor_from_raw(name, datatype, shape, blobs[:size], where, parameters)


def _outputs(outputs: object) -> list[RequestedOutput] | None:
    """The selection of outputs; absent, null and empty all mean every output (CONTRACT O24)."""
    if not outputs and isinstance(outputs, list | None):
        return None
    selected: list[RequestedOutput] = []
    names: set[str] = set()
    for i, name, member in _named_members(outputs, "outputs"):
        where = f'outputs[{i}] "{name}"'
        note_once(name, names, where)
        parameters = document.parameters_of(member, where)
        binary = _flag(parameters, "binary_data", f"{where}.parameters")
        selected.append(RequestedOutput(name=name, binary=binary))
    return selected


def _flag(parameters: Mapping[str, Any], key: str, where: str) -> bool | None:
    """A boolean parameter, None if absent."""
    value = parameters.get(key)
    if value is not None and not isinstance(value, bool):
        got = document.kind_of(value)
        raise InvalidInput(f"{where}.{key}: expected true or false, got {got}")
    return value


def verb_of(request: V2Request) -> Verb:
    """The verb that the parameter ``verb`` asks for: gRPC has no other way to ask to explain.

    Raises:
        InvalidInput: it is neither ``predict`` nor ``explain``.
    """
    verb = request.parameters.get("verb", Verb.PREDICT)
    if verb not in (Verb.PREDICT, Verb.EXPLAIN):
        raise InvalidInput(f"parameters.verb: {document.brief(verb)} is not predict or explain")
    return Verb(verb)
