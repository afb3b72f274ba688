"""KServe v1 bodies: ``instances`` in, ``predictions`` or ``explanations`` out (CONTRACT 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from kserve_torch.codec import cloudevents, content, document, v2, values
from kserve_torch.codec.cloudevents import Event
from kserve_torch.codec.v2 import V2Request
from kserve_torch.errors import HandlerError, InvalidInput, UnsupportedContent
from kserve_torch.frozen import frozen
from kserve_torch.messages import NOTHING, Row, Verb

ELEMENT = "instances[{}]"
_ANSWER_KEY = {Verb.PREDICT: "predictions", Verb.EXPLAIN: "explanations"}


@frozen(kw_only=True)
class V1Request:
    """A decoded request.

    Attributes:
        instances: the rows; may be empty, which is answered without a handler (CONTRACT K13).
        parameters: the body's ``parameters``.
        content_types: of the fields of a body that was not JSON (CONTRACT R4).
        event: the structured CloudEvent around the body, or None.
    """

    instances: Sequence[Row]
    parameters: Mapping[str, Any] = NOTHING
    content_types: Mapping[str, str] = NOTHING
    event: Event | None = None


def decode(body: bytes, content_type: str) -> V1Request | V2Request:
    """Read a request body.

    JSON is read in any charset, and also without a content type or with curl's default one. A body
    of another type that holds a JSON object with instances or inputs is read as JSON all the same,
    as KServe does for ``application/octet-stream`` (CONTRACT K15, T-07). Any other body is one
    instance: ``{"data": text}`` for ``text/*``, else ``{"data": bytearray}``.

    Returns:
        A `V2Request` for a body that has v2 ``inputs`` in place of ``instances``.

    Raises:
        InvalidInput: names the member or element at fault.
        UnsupportedContent: an unknown charset, or a multipart body.
    """
    media_type, parameters = content.parse_media_type(content_type)
    charset = parameters.get("charset", "utf-8")
    if media_type in ("", content.FORM) or content.is_json(media_type):
        text = body if charset.lower() == "utf-8" else content.text(body, charset)
        return from_document(document.parse_object(text), media_type)
    if media_type.startswith("multipart/"):
        raise UnsupportedContent(f"Content-Type: {media_type} is not read here, send JSON")
    if (embedded := _embedded(body)) is not None:
        return from_document(embedded, media_type)
    is_text = media_type.startswith("text/")
    data = content.text(body, charset) if is_text else bytearray(body)
    return V1Request(instances=[{"data": data}], content_types={"data": media_type})


def _embedded(body: bytes) -> dict[str, Any] | None:
    """The JSON request in a body whose content type does not say so."""
    if not body[:64].lstrip().startswith(b"{"):
        return None
    try:
        request = document.parse_object(body)
    except InvalidInput:
        return None
    return request if "instances" in request or "inputs" in request else None


def from_document(request: Mapping[str, Any], media_type: str = "") -> V1Request | V2Request:
    """Read a request that is parsed already; see `decode`."""
    event = cloudevents.unwrap(request, media_type) if "specversion" in request else None
    if event is not None:
        request = event.data
    if "inputs" in request and "instances" not in request:
        return replace(v2.from_document(request), event=event)
    instances = instances_of(request)
    parameters = document.parameters_of(request) if "parameters" in request else NOTHING
    return V1Request(instances=instances, parameters=parameters, event=event)


def instances_of(request: Mapping[str, Any]) -> list[Any]:
    """The ``instances`` of a request (CONTRACT K11, K12).

    Raises:
        InvalidInput: they are missing or not a list.
    """
    if "instances" not in request:
        raise InvalidInput('Expected "instances" in the request')
    instances = request["instances"]
    if not isinstance(instances, list):
        raise InvalidInput(f'Expected "instances" to be a list, got {document.kind_of(instances)}')
    return instances


def encode(results: Sequence[Any], verb: Verb = Verb.PREDICT) -> bytes:
    """``{"predictions": [...]}``, or ``{"explanations": [...]}``, one element per instance.

    Arrays and torch tensors become nested lists, bytes their text if they are UTF-8 and else
    base64, NaN and infinities null.

    Raises:
        HandlerError: a result has no JSON form; the text names it by its index.
    """
    answer = {_ANSWER_KEY[verb]: results if isinstance(results, list) else list(results)}
    try:
        return orjson.dumps(answer, values.default, orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return _encode_one_by_one(results, verb)


def _encode_one_by_one(results: Sequence[Any], verb: Verb) -> bytes:
    """The slow path: for what only `json_text` writes, or an error that names the result."""
    texts: list[bytes] = []
    for i, result in enumerate(results):
        try:
            texts.append(values.json_text(result))
        except TypeError as error:
            raise HandlerError(f"{_ANSWER_KEY[verb]}[{i}]: {error}") from error
    return b'{"%s":[%s]}' % (_ANSWER_KEY[verb].encode(), b",".join(texts))
