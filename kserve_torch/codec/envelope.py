"""Service envelopes: how ``service_envelope`` unpacks bodies on native routes (CONTRACT 3.10).

Every request is opened and sealed on its own, so that batches of any size are answered correctly;
two of TorchServe's envelopes read only the first request of a batch (CONTRACT T-01).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kserve_torch.codec import document, native, v1, v2, v2_reply
from kserve_torch.codec.document import JSON
from kserve_torch.codec.mapping import MAPPINGS
from kserve_torch.codec.v2 import V2Request
from kserve_torch.errors import InvalidInput
from kserve_torch.messages import Reply, Request, Row, RowReply, Verb

Seal = Callable[[Request, Reply], RowReply]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What was in an envelope.

    Attributes:
        rows: the handler's rows; none if the request had an empty list, which needs no handler.
        element: how errors name row ``i``, as a format.
        seal: joins the rows' replies into the one answer to the request.
        snapshot: the request's `Request.snapshot`.
    """

    rows: Sequence[Row]
    element: str
    seal: Seal
    snapshot: Callable[[Any], Any] | None = None


def open_envelope(name: str | None, row: dict[str, Any]) -> Opened:
    """Open the row that a native body was decoded to.

    Args:
        name: ``service_envelope``, None for none.
        row: `NativeRequest.row`.

    Raises:
        InvalidInput: the content does not have the envelope's form.
    """
    return _ENVELOPES[name](row)


def _open_none(row: dict[str, Any]) -> Opened:
    return Opened(rows=[row], element="row {}", seal=_only, snapshot=native.snapshot)


def _open_body(row: dict[str, Any]) -> Opened:
    return Opened(rows=[_content(row)], element="row {}", seal=_only, snapshot=native.snapshot)


def _open_json(row: dict[str, Any]) -> Opened:
    request = row if "instances" in row else object_in(row, "json")
    instances = v1.instances_of(request)
    rows = [_with_bytes(instance, i) for i, instance in enumerate(instances)]
    return Opened(rows=rows, element=v1.ELEMENT, seal=partial(_seal_v1, verb=Verb.PREDICT))


def _open_kserve(row: dict[str, Any]) -> Opened:
    return Opened(rows=v1.instances_of(object_in(row, "kserve")), element=v1.ELEMENT, seal=_seal_v1)


def _open_kservev2(row: dict[str, Any]) -> Opened:
    request, mapping = v2.from_document(object_in(row, "kservev2")), MAPPINGS["tensor"]
    rows = mapping.rows(request.inputs)
    return Opened(rows=rows, element=mapping.element, seal=partial(_seal_v2, request))


_ENVELOPES: Mapping[str | None, Callable[[dict[str, Any]], Opened]] = {
    None: _open_none,
    "body": _open_body,
    "json": _open_json,
    "kserve": _open_kserve,
    "kservev2": _open_kservev2,
}


# --- opening --------------------------------------------------------------------------------------


def _content(row: dict[str, Any]) -> Any:
    """The row's payload: its ``data``, else its ``body``."""
    return row.get("data") or row.get("body")


def object_in(row: dict[str, Any], envelope: str) -> Mapping[str, Any]:
    """The payload as a JSON object, parsed if its content type did not say JSON.

    Raises:
        InvalidInput: it is no object.
    """
    payload = _content(row)
    try:
        if isinstance(payload, bytes | bytearray | str):
            return document.parse_object(payload)
        if not isinstance(payload, dict):
            raise InvalidInput(f"Expected a JSON object, got {document.kind_of(payload)}")
    except InvalidInput as error:
        raise InvalidInput(
            f"{error.message}; service_envelope={envelope} is set, so a body must be a JSON object"
        ) from None
    return payload


def _with_bytes(instance: Any, i: int) -> Any:
    """Instance ``i`` with ``{"b64": text}`` decoded, as a whole or in its columns."""
    if not isinstance(instance, dict):
        return instance
    if instance.keys() == {"b64"}:
        return _bytes(instance["b64"], f"instances[{i}].b64")
    return {
        column: _bytes(value["b64"], f"instances[{i}].{column}.b64")
        if isinstance(value, dict) and value.keys() == {"b64"}
        else value
        for column, value in instance.items()
    }


def _bytes(text: object, where: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidInput(f"{where}: expected a string, got {document.kind_of(text)}")
    decoded = document.from_base64(text)
    if decoded is None:
        raise InvalidInput(f"{where}: not valid base64")
    return decoded


# --- sealing --------------------------------------------------------------------------------------


def _only(request: Request, reply: Reply) -> RowReply:
    """The reply to a request of one row."""
    return reply.rows[0]


def _seal_v1(request: Request, reply: Reply, verb: Verb | None = None) -> RowReply:
    return _as_one(reply, v1.encode(reply.results, verb or request.verb))


def _seal_v2(decoded: V2Request, request: Request, reply: Reply) -> RowReply:
    names = [tensor.name for tensor in decoded.inputs]
    outputs = MAPPINGS["tensor"].outputs(reply.results, names)
    id_ = request.id if decoded.id is None else decoded.id
    wanted = replace(decoded, binary_output=False, outputs=None)
    body, _ = v2_reply.encode(reply.model, reply.version, id_, outputs, wanted)
    return _as_one(reply, body)


def _as_one(reply: Reply, body: bytes) -> RowReply:
    """All rows' replies as one: the first error's status and headers, else the first row's."""
    rows = reply.rows or [RowReply(result=None)]
    lead = next((row for row in rows if _failed(row.status)), rows[0])
    return replace(lead, result=body, content_type=lead.content_type or JSON)


def _failed(status: object) -> bool:
    """Whether it is an error's, or not a number, which is refused when it is sent."""
    return not isinstance(status, int) or status >= 400
