"""Form bodies: multipart/form-data (RFC 7578) and application/x-www-form-urlencoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError

from kserve_torch.codec import content
from kserve_torch.errors import InvalidInput

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

#: More than any real form has; bounds the work that a small body can cause.
MAX_FIELDS = 1000

_BINARY = "application/octet-stream"
#: The value of each byte as a hexadecimal digit; 16 if it is not one.
_DIGITS = np.full(256, 16, np.uint8)
_DIGITS[list(b"0123456789abcdefABCDEF")] = [*range(16), *range(10, 16)]


@dataclass(slots=True)
class Part:
    """One field of a form: its name, bytes and media type."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    @property
    def name(self) -> str:
        """The ``name`` of its Content-Disposition.

        Raises:
            InvalidInput: it has none.
        """
        name = self._disposition.get("name")
        if name is None:
            raise InvalidInput("multipart: a part has no name in its Content-Disposition")
        return name

    @property
    def media_type(self) -> str:
        """The Content-Type of a file, without parameters; always "" for a plain field.

        TorchServe keeps the type of files only, so handlers parse the JSON of plain fields. A file
        without a type is binary data.
        """
        if not self._disposition.keys() & {"filename", "filename*"}:
            return ""
        return content.parse_media_type(self.headers.get("content-type", _BINARY))[0]

    @property
    def _disposition(self) -> dict[str, str]:
        """The parameters of its Content-Disposition."""
        return content.parse_media_type(self.headers.get("content-disposition", ""))[1]


class _Parts:
    """Collects what `MultipartParser` reports."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.complete = False
        self._name = self._value = b""

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) == MAX_FIELDS:
            raise InvalidInput(f"multipart: more than {MAX_FIELDS} parts")
        self.parts.append(Part())

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        value = self._value.decode("utf-8", "replace")
        self.parts[-1].headers[self._name.decode("latin-1").lower()] = value
        self._name = self._value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].body += memoryview(data)[start:end]

    def _end(self) -> None:
        self.complete = True


def parse_multipart(body: bytes, boundary: str) -> list[Part]:
    """The parts of a multipart body.

    Raises:
        InvalidInput: there is no boundary, or the body is damaged, cut short or has too many parts.
    """
    if not boundary:
        raise InvalidInput("Content-Type: multipart without a boundary")
    parts = _Parts()
    try:
        MultipartParser(boundary.encode(), parts.callbacks()).write(body)
    except FormParserError as error:
        raise InvalidInput(f"multipart: {error}") from None
    if not parts.complete:
        raise InvalidInput("multipart: the body ends before its last boundary")
    return parts.parts


def parse_urlencoded(body: bytes) -> list[tuple[str, bytes]]:
    """Names and values of an urlencoded body, without the line end of a file or of ``echo``.

    Raises:
        InvalidInput: too many fields.
    """
    body = body.rstrip(b"\r\n")
    if body.count(b"&") >= MAX_FIELDS:
        raise InvalidInput(f"form: more than {MAX_FIELDS} fields")
    fields = (part.partition(b"=") for part in body.split(b"&") if part)
    return [
        (_unescaped(name).decode("utf-8", "replace"), _unescaped(value))
        for name, _, value in fields
    ]


def _unescaped(text: bytes) -> bytes:
    """Urlencoded text decoded; a ``%`` without two hexadecimal digits stays.

    `urllib.parse` makes an object per escape: a body of nothing else would take four seconds.
    """
    text = text.replace(b"+", b" ")
    if b"%" not in text:
        return text
    codes = np.frombuffer(text + b"  ", np.uint8)
    high, low = _DIGITS[codes[1:-1]], _DIGITS[codes[2:]]
    codes = codes[:-2]
    escapes = (codes == ord("%")) & (high < 16) & (low < 16)
    digits = np.zeros_like(escapes)
    digits[1:] |= escapes[:-1]
    digits[2:] |= escapes[:-2]
    return bytes(np.where(escapes, 16 * high + low, codes)[~digits])
