"""CloudEvents around a body: binary, in headers, or structured, in the JSON (CONTRACT K16)."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import orjson

from kserve_torch.codec import document
from kserve_torch.errors import InvalidInput

MEDIA_TYPE = "application/cloudevents+json"
DEFAULT_TYPE = "io.kserve.inference.response"
DEFAULT_SOURCE = "io.kserve.inference."

_REQUIRED = ("specversion", "source", "type", "id")
_STRUCTURED = frozenset(("time", "type", "source", "id", "specversion", "data"))
#: Attribute names that the specification allows.
_NAME = re.compile("[a-z0-9]+")
#: Characters that stay as they are in a header; others are percent-encoded (HTTP binding, 3.1.3.2).
_PLAIN = string.punctuation.translate({ord('"'): None, ord("%"): None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A CloudEvent.

    Attributes:
        attributes: ``id``, ``source``, ``type``, ``specversion`` and whatever else it carries;
            only extensions may be booleans or integers.
        data: the request inside a structured event; empty for a binary one, whose data is the body.
        structured: whether the answer must be a structured event, too (CONTRACT K17).
    """

    attributes: Mapping[str, str | int]
    data: Mapping[str, Any]
    structured: bool = False


def from_headers(headers: Mapping[str, str]) -> Event | None:
    """The binary event in request headers, or None unless all four required ones are there.

    Args:
        headers: request headers with lower-case names.
    """
    if any(f"ce-{name}" not in headers for name in _REQUIRED):
        return None
    attributes = {
        name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")
    }
    return Event(attributes=attributes, data={})


def unwrap(request: Mapping[str, Any], media_type: str) -> Event | None:
    """The structured event that a JSON body is, or None if it is a plain request (CONTRACT T-49).

    A body without the event content type counts as an event only if it has all six members.

    Raises:
        InvalidInput: the event's ``data`` is not a JSON object.
    """
    declared = media_type == MEDIA_TYPE
    needed = {"data"} if declared else _STRUCTURED
    if "instances" in request or not request.keys() >= needed:
        return None
    data = request["data"]
    if not isinstance(data, dict):
        raise InvalidInput(f"data: expected an object, got {document.kind_of(data)}")
    attributes = {
        name: value if isinstance(value, int) and name not in _STRUCTURED else str(value)
        for name, value in request.items()
        if value is not None and not isinstance(value, dict | list)
    }
    return Event(attributes=attributes, data=data, structured=declared)


def response_attributes(
    request: Event, model: str, environ: Mapping[str, str], **own: str
) -> dict[str, str | int]:
    """Attributes of the event that answers ``request``.

    Args:
        request: the event that came in.
        model: the model's name, part of the default source.
        environ: with ``CE_TYPE`` and ``CE_SOURCE``, and with ``CE_MERGE`` to keep the request's
            attributes.
        own: those that each event has for itself, ``id`` and ``time``.
    """
    merge = environ.get("CE_MERGE", "").lower() == "true"
    kept = dict(request.attributes) if merge else {"specversion": "1.0"}
    kept.pop("datacontenttype", None)
    kept["type"] = environ.get("CE_TYPE") or DEFAULT_TYPE
    kept["source"] = environ.get("CE_SOURCE") or f"{DEFAULT_SOURCE}{model}"
    return {**kept, **own}


def to_headers(attributes: Mapping[str, str | int]) -> list[tuple[str, str]]:
    """Response headers of a binary event; attributes with invalid names are left out."""
    return [
        (f"ce-{name}", quote(_text(value), safe=_PLAIN, errors="replace"))
        for name, value in attributes.items()
        if _NAME.fullmatch(name)
    ]


def _text(value: str | int) -> str:
    """An attribute's value as text (specification, Type System)."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_structured(attributes: Mapping[str, str | int], body: bytes) -> bytes:
    """A structured event around a JSON body."""
    head = orjson.dumps({**attributes, "datacontenttype": document.JSON})
    return b'%s,"data":%s}' % (head[:-1], body)
