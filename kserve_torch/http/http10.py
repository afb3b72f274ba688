"""Answers to clients that speak HTTP/1.0: they know no chunks, and must ask to stay connected."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

#: What such a client asks with, and is told that it may with (RFC 9112 C.2.2).
STAYING = (b"connection", b"keep-alive")


def speak_http10(cycle: RequestResponseCycle) -> None:
    """Have a request answered in the manner of HTTP/1.0.

    A body of unknown length is sent as it is; the end of the connection ends it (RFC 9112 6.3).
    """
    send = cycle.send

    async def plainly(message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            if b"content-length" not in names or b"connection" in names:
                cycle.keep_alive = False
            if cycle.keep_alive:
                message = {**message, "headers": [*message["headers"], STAYING]}
        # uvicorn compares each part with what is left of the content-length.
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.keep_alive = _asks_to_stay(cycle)
    cycle.chunked_encoding = False
    cycle.send = plainly  # type: ignore[method-assign]


def _asks_to_stay(cycle: RequestResponseCycle) -> bool:
    """Whether the client does; one that sends chunks cannot mean them (RFC 9112 6.1)."""
    headers = cycle.scope["headers"]
    if any(name == b"transfer-encoding" for name, _ in headers):
        return False
    values = b",".join(value for name, value in headers if name == b"connection")
    options = {option.strip().lower() for option in values.split(b",")}
    return b"keep-alive" in options and b"close" not in options
