"""Bodies of TorchServe's own inference routes: one row in, one result out (CONTRACT R1-R9)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson

from kserve_torch.codec import content, multipart, pieces, values
from kserve_torch.codec.content import FORM
from kserve_torch.codec.document import JSON
from kserve_torch.codec.snapshot import written
from kserve_torch.errors import HandlerError
from kserve_torch.messages import NOTHING, RowReply

_MULTIPART = "multipart/form-data"
#: Media types of bodies whose fields become those of the row.
FORMS = (_MULTIPART, FORM)

#: Largest JSON body, in bytes, whose integers beyond 64 bits stay exact.
_LOOKED_AT = 4096
_DIGITS_AS_0 = bytes.maketrans(b"123456789", b"0" * 9)
#: The digits of -(2^63) - 1; all shorter integers are exact.
_LONG = b"0" * 19


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest:
    """A decoded request.

    Attributes:
        row: what the handler gets: ``{"body": value}``, or a value per field of a form.
        content_types: per key of ``row`` its media type, "" if it has none (CONTRACT R4).
    """

    row: dict[str, Any]
    content_types: Mapping[str, str]


def decode(
    body: bytes,
    content_type: str,
    params: Mapping[str, str] = NOTHING,
    *,
    decode_input: bool = True,
) -> NativeRequest:
    """Read a request body.

    Args:
        body: the whole body, decoded from its content coding.
        content_type: the header's value, "" if there is none.
        params: query parameters, on the routes that pass them on (CONTRACT R1); fields of the
            body win over them.
        decode_input: ``decode_input_request``; False leaves every value a ``bytearray``.

    Raises:
        InvalidInput: a form is damaged or cut short.
    """
    row: dict[str, Any] = {name: bytearray(value, "utf-8") for name, value in params.items()}
    types = dict.fromkeys(row, "")
    for name, value, media_type in _fields(body, content_type):
        row[name] = _value(value, media_type) if decode_input else value
        types[name] = media_type
    return NativeRequest(row=row, content_types=types)


def _fields(body: bytes, content_type: str) -> list[tuple[str, bytearray, str]]:
    """Name, bytes and media type of every field; a body that is no form is the field ``body``.

    ``curl --data`` calls everything a form. JSON is none, nor are images, which have NUL bytes:
    TorchServe makes fields' names of them. Clients also call an image alone multipart; without a
    boundary, TorchServe takes it as it is.
    """
    media_type, parameters = content.parse_media_type(content_type)
    if media_type == _MULTIPART and ("boundary" in parameters or body.startswith(b"--")):
        parts = multipart.parse_multipart(body, parameters.get("boundary", ""))
        return [(part.name, part.body, part.media_type) for part in parts]
    if media_type == FORM:
        if _is_json(body):
            media_type = JSON
        elif b"\0" not in body:
            fields = multipart.parse_urlencoded(body)
            return [(name, bytearray(value), "") for name, value in fields]
    return [("body", bytearray(body), media_type)]


def _is_json(body: bytes) -> bool:
    """Whether this is a JSON object or list."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    return isinstance(_json(bytearray(body)), dict | list)


def _value(value: bytearray, media_type: str) -> Any:
    """JSON parsed, text as ``str``; all else, and what cannot be decoded, unchanged (R2)."""
    if media_type == JSON:
        return _json(value)
    if media_type.startswith("text"):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value


def _json(value: bytearray) -> Any:
    """The JSON value; what orjson refuses (NaN) or rounds is read as TorchServe does (R2)."""
    if not _has_long_number(value):
        with suppress(orjson.JSONDecodeError):
            return pieces.loads(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _has_long_number(value: bytearray) -> bool:
    """Whether there are so many digits in a row that orjson may make a float of an integer.

    The search takes up to 2 us at this size, but on larger bodies of text it would take longer than
    to parse them. Those hold images and tensors; it is small ones that hold ids and the like.
    """
    return len(value) <= _LOOKED_AT and _LONG in value.translate(_DIGITS_AS_0)


def snapshot(result: Any) -> Any:
    """A result as `encode` needs it, which the handler cannot change any more."""
    return written(result, orjson.OPT_INDENT_2)


def encode(row: RowReply, save_tensor: Callable[[Any], bytes]) -> tuple[bytes, str]:
    """Body and content type of an answer (CONTRACT R6, R9).

    Bytes go out as they are, ``str`` in UTF-8, a torch tensor as ``save_tensor`` writes it, any
    other value as JSON with an indent of 2. A content type that the handler set wins.

    Raises:
        HandlerError: the result has no JSON form.
    """
    result = row.result
    try:
        if isinstance(result, bytes | bytearray | memoryview):
            body, content_type = bytes(result), "application/octet-stream"
        elif isinstance(result, str):
            body, content_type = result.encode(), "text/plain; charset=utf-8"
        elif values.is_torch(result):
            body, content_type = save_tensor(result), "application/octet-stream"
        else:
            body, content_type = values.json_text(result, orjson.OPT_INDENT_2), JSON
    except (TypeError, UnicodeEncodeError) as error:
        raise HandlerError(f"Unsupported model output data type: {error}") from error
    return body, row.content_type or content_type
