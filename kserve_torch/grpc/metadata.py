"""A call's metadata, which are gRPC's headers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import grpc

#: Names of metadata with text values, except gRPC's own.
_NAME = re.compile(r"(?!grpc-)[0-9a-z_.-]+(?<!-bin)")
#: Most bytes of metadata beside the status: clients refuse a response with more than 8 KiB.
_MOST_METADATA = 7000
#: What each entry counts for, beside its name and value (RFC 9113 6.5.2).
_ENTRY = 32


def metadata_of(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers that gRPC metadata can carry: lower-case names, printable ASCII values.

    Those that clients would find too long together are left out.
    """
    entries, left = [], _MOST_METADATA
    for name, value in headers.items():
        size = _ENTRY + len(name) + len(value)
        fits = size <= left and value.isascii() and value.isprintable()
        if fits and _NAME.fullmatch(name.lower()):
            entries.append((name.lower(), value))
            left -= size
    return tuple(entries)


def headers_of(context: grpc.aio.ServicerContext) -> dict[str, str]:
    """A call's metadata without the binary entries; gRPC's names are lower case."""
    entries = context.invocation_metadata() or ()
    return {name: value for name, value in entries if isinstance(value, str)}
