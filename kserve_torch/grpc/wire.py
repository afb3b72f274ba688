"""Long fields of messages, written as protobuf encodes them.

protobuf itself copies them into the message first, and out of it again to send it. As encoded
messages may be concatenated, the other fields can be its own.
"""

from __future__ import annotations

from collections.abc import Iterator

#: The wire type of fields that begin with their length.
_DELIMITED = 2


def field(number: int, content: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """The parts of a field of bytes, a message, or packed numbers: its head and its content.

    Args:
        number: the field's, up to 15.
        content: as it is sent.
    """
    yield bytes([number << 3 | _DELIMITED, *_varint(len(content))])
    yield content


def _varint(number: int) -> Iterator[int]:
    """A number as protobuf's varint: seven bits per byte, the lowest first."""
    while number > 0x7F:
        yield number & 0x7F | 0x80
        number >>= 7
    yield number
