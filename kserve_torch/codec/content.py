"""Media types, charsets and content codings of a body."""

from __future__ import annotations

import codecs
import re
import zlib

from kserve_torch.codec.document import JSON
from kserve_torch.errors import InvalidInput, PayloadTooLarge, UnsupportedContent

#: The media type that curl gives everything, if not told another.
FORM = "application/x-www-form-urlencoded"

#: Python codecs that a ``charset`` may name; not all of Python's codecs are charsets.
_CHARSETS = frozenset(
    (
        *("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"),
        *("utf-32", "utf-32-le", "utf-32-be", "ascii", "iso8859-1", "iso8859-2", "iso8859-15"),
        *("cp1250", "cp1251", "cp1252", "koi8-r"),
        *("gb18030", "gbk", "big5", "shift_jis", "euc_jp", "euc_kr"),
    )
)
#: A quoted string, which may lack its end, or a semicolon outside of one.
_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|;', re.DOTALL)
_WBITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}

#: Most members of a gzip body: bgzip makes one per 64 KB, and empty ones cost time for nothing.
_MAX_MEMBERS = 10_000
#: Bytes of a body that zlib gets at once.
_PIECE = 16 * 1024


def parse_media_type(content_type: str) -> tuple[str, dict[str, str]]:
    """``type/subtype`` in lower case and the parameters by lower-case name (RFC 9110 8.3.1)."""
    media_type, *rest = _split(content_type)
    parameters: dict[str, str] = {}
    for part in rest:
        name, separator, value = part.partition("=")
        if separator:
            parameters[name.strip().lower()] = _unquoted(value.strip())
    return media_type.strip().lower(), parameters


def _split(content_type: str) -> list[str]:
    """The parts between semicolons; a semicolon within quotes does not count."""
    if '"' not in content_type:
        return content_type.split(";")
    ends = [mark.start() for mark in _MARK.finditer(content_type) if mark[0] == ";"]
    starts = [0, *(end + 1 for end in ends)]
    ends.append(len(content_type))
    return [content_type[start:end] for start, end in zip(starts, ends, strict=True)]


def _unquoted(value: str) -> str:
    """The value of a quoted string, or a token as it is."""
    if len(value) < 2 or not value.startswith('"') or not value.endswith('"'):
        return value
    return value[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def is_json(media_type: str) -> bool:
    """Whether a media type, without its parameters, says JSON."""
    return media_type == JSON or media_type.endswith("+json")


def text(body: bytes, charset: str = "utf-8") -> str:
    """``body`` as text.

    Raises:
        UnsupportedContent: the charset is unknown.
        InvalidInput: the bytes are not in that charset.
    """
    try:
        codec = codecs.lookup(charset).name
    except (LookupError, ValueError):
        codec = ""
    if codec not in _CHARSETS:
        raise UnsupportedContent(f"Content-Type: charset {charset[:40]!r} is not supported")
    try:
        return body.decode(codec)
    except UnicodeDecodeError as error:
        fault = f"not {codec} at byte {error.start}"
        raise InvalidInput(f"Unrecognized request format: {fault}") from None


def decode_body(body: bytes, content_encoding: str, limit: int) -> bytes:
    """``body`` with its content codings undone: gzip, deflate, identity (CONTRACT O45).

    Args:
        body: the bytes of the message.
        content_encoding: the header's value; codings are listed in the order they were applied.
        limit: bytes that the result, and every step on the way, may have.

    Raises:
        UnsupportedContent: an unknown coding, or more than four of them.
        PayloadTooLarge: the result is over ``limit``.
        InvalidInput: the data is damaged or cut short.
    """
    codings = [coding.strip().lower() for coding in content_encoding.split(",")]
    applied = [coding for coding in codings if coding not in ("", "identity")]
    if unknown := [coding for coding in applied if coding not in _WBITS]:
        raise UnsupportedContent(f"Content-Encoding: {unknown[0][:40]!r} is not gzip or deflate")
    if len(applied) > 4:
        raise UnsupportedContent(f"Content-Encoding: {len(applied)} codings, at most 4 are read")
    for coding in reversed(applied):
        body = _inflate(body, coding, limit)
    return body


def _inflate(body: bytes, coding: str, limit: int) -> bytes:
    """Undo one coding; some clients send ``deflate`` without its zlib wrapper."""
    raw = coding == "deflate" and not _has_zlib_header(body)
    wbits = -zlib.MAX_WBITS if raw else _WBITS[coding]
    members = 1 if coding == "deflate" else _MAX_MEMBERS
    try:
        decoded, fault = _undone(body, wbits, limit + 1, members)
    except zlib.error:
        raise InvalidInput(f"Content-Encoding: the body is not {coding} data") from None
    if len(decoded) > limit:
        raise PayloadTooLarge(f"the body is over {limit} bytes when decoded from {coding}")
    if fault:
        raise InvalidInput(f"Content-Encoding: the {coding} data {fault}")
    return decoded


def _undone(body: bytes, wbits: int, most: int, members: int) -> tuple[bytes, str]:
    """Up to ``members`` members decompressed and joined (RFC 1952 2.2), and what is wrong, or "".

    Stops at ``most`` bytes. The body is read in pieces, because zlib copies the rest of its input
    at the end of each member.

    Raises:
        zlib.error: the data is damaged.
    """
    parts: list[bytes] = []
    stream = zlib.decompressobj(wbits)
    for start in range(0, len(body), _PIECE):
        piece = body[start : start + _PIECE]
        while piece and most:
            if stream.eof:
                members -= 1
                if not members:
                    return b"".join(parts), "goes on after its end"
                stream = zlib.decompressobj(wbits)
            parts.append(stream.decompress(piece, most))
            most -= len(parts[-1])
            piece = stream.unused_data
    return b"".join(parts), "" if stream.eof else "is cut short"


def _has_zlib_header(body: bytes) -> bool:
    """RFC 1950 2.2: method 8, and a check value that makes the two bytes a multiple of 31."""
    return len(body) >= 2 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
