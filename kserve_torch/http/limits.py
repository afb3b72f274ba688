"""Limits on what the clients of a server may cost, as far as their connections go."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of the request line and the headers together.
MAX_HEAD = 64 * 1024
#: Seconds that a connection over the limit has to ask for something and be refused.
REFUSAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What the clients of one server may cost.

    Attributes:
        connections: open at a time; one more is answered 503.
        head_seconds: from the first byte of a request, or the start of a connection, to the end of
            the headers.
        stalled_seconds: for which a client may take nothing of the answer that waits for it.
    """

    connections: int
    head_seconds: float
    stalled_seconds: float
