"""Limits on the connections of clients."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of the request line and the headers together.
MAX_HEAD = 64 * 1024
#: Seconds in which a connection over the limit must send its request, to be refused.
REFUSAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits on the connections to one server.

    Attributes:
        connections: how many may be open; requests on further ones are answered 503.
        head_seconds: from the first byte of a request, or the start of a connection, to the end of
            the headers.
        stalled_seconds: for which a client may read nothing of its answer.
    """

    connections: int
    head_seconds: float
    stalled_seconds: float
