"""Large JSON texts are parsed in pieces: a parser keeps all other threads waiting until it is done.

A text is cut at commas. What is open there, such as ``{"a":[``, is closed at the end of one piece,
behind a mark, and opened again at the beginning of the next, whose value is joined to the one
before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

#: Bytes from which on a text is cut. It takes 2 to 5 ms per MB to parse, and up to as long to cut.
WORTH = 2 * 1024 * 1024
#: Bytes of a piece.
PIECE = 64 * 1024

#: The end of a value and a comma before another value, or a member.
_CUT = re.compile(rb"[^\s\[{,:],\s*+(?=[^\s\]},:])")
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_CLOSING = {ord("["): ord("]"), ord("{"): ord("}")}
#: The last element, or member, of what is open at the end of a piece.
_MARK, _MARK_TEXT = "\0", rb'"\u0000"'


def loads(text: bytes | bytearray | memoryview | str) -> Any:
    """The value of a JSON text.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
    """
    if len(text) < WORTH or isinstance(text, str):
        return orjson.loads(text)
    try:
        whole: Any = None
        for path, piece in _pieces(bytes(text)):
            value = orjson.loads(piece)
            whole = _joined(whole, value, path) if path else value
        return whole
    # It is not JSON, or has the mark itself, or a member twice, and was cut in one of these.
    except (ValueError, LookupError, TypeError, AttributeError):
        return orjson.loads(text)


def _pieces(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Which brackets are open where a piece begins, and the piece as a JSON text.

    Raises:
        ValueError: a string has no end, or the text has the mark itself.
        IndexError: more brackets are closed than are open.
    """
    path = bytearray()
    before = opening = b""
    begin = seen = 0
    while (comma := text.find(b",", max(seen, begin + PIECE))) >= 0:
        unescaped = text[seen:comma]
        if b"\\" in unescaped:
            unescaped = unescaped.replace(rb"\\", b"").replace(rb"\"", b"")
        parts = unescaped.split(b'"')  # outside and inside of strings, in turn
        outside = b"".join(parts[::2])
        if any(map(outside.__contains__, _BRACKETS)):
            _follow(path, outside.translate(None, _NO_BRACKETS))
        seen = comma + 1
        if len(parts) % 2 == 0:
            seen = _end_of_string(text, comma)
        elif cut := _CUT.match(text, comma - 1):
            yield before, opening + _unmarked(text[begin:comma]) + _closing(path)
            begin = seen = cut.end()
            before, opening = bytes(path), _opening(path)
    yield before, opening + _unmarked(text[begin:]) if before else text


def _follow(path: bytearray, brackets: bytes) -> None:
    """Note which of ``brackets`` stay open; the parser finds those that do not match.

    Raises:
        IndexError: more are closed than are open.
    """
    for _ in range(3):  # nearly all are closed at once, or around such ones
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    for bracket in brackets:
        if bracket in _CLOSING:
            path.append(bracket)
        else:
            path.pop()


def _end_of_string(text: bytes, start: int) -> int:
    while inside := _IN_STRING.match(text, start, start + PIECE):
        end = inside.end()
        if text.startswith(b'"', end):
            return end + 1
        if end == start:
            break
        start = end
    raise ValueError("a string has no end")


def _unmarked(piece: bytes) -> bytes:
    if b"\\" in piece and _MARK_TEXT in piece:
        raise ValueError("the mark is there already")
    return piece


def _closing(path: bytearray) -> bytes:
    """The text that puts the mark into the innermost of ``path`` and closes all."""
    member = b":0" if path[-1] == ord("{") else b""
    return b"," + _MARK_TEXT + member + bytes(_CLOSING[bracket] for bracket in reversed(path))


def _opening(path: bytearray) -> bytes:
    """The text that opens all of ``path`` again."""
    return bytes(path).replace(b"{", b"{" + _MARK_TEXT + b":").removesuffix(_MARK_TEXT + b":")


def _joined(whole: Any, more: Any, path: bytes) -> Any:
    """``whole`` with ``more``, which goes on where the innermost of ``path`` was closed."""
    left, right = whole, more
    for bracket in path[:-1]:
        if bracket == ord("["):
            inner, rest = left[-1], right.pop(0)
            left.extend(right)
        else:
            inner, rest = left[next(reversed(left), None)], right.pop(_MARK)
            left.update(right)
        left, right = inner, rest
    if path[-1] == ord("["):
        mark = left.pop()
        left.extend(right)
    else:
        mark, _ = left.popitem()
        left.update(right)
    if mark != _MARK:
        raise ValueError("this is not where the mark was")
    return whole
