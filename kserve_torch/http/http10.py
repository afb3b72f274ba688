"""Answers to HTTP/1.0 clients: these know no chunked bodies and must ask for keep-alive."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

#: The header with which a client asks for it, and the server agrees (RFC 9112 C.2.2).
STAYING = (b"connection", b"keep-alive")


def speak_http10(cycle: RequestResponseCycle) -> None:
    """Answer a request in HTTP/1.0.

    A body of unknown length is sent unchunked; closing the connection ends it (RFC 9112 6.3).
    """
    send = cycle.send

    async def plainly(message: Any) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            if b"content-length" not in names or b"connection" in names:
                cycle.keep_alive = False
            if cycle.keep_alive:
                message = {**message, "headers": [*message["headers"], STAYING]}
        # uvicorn checks each part against what is left of the content-length.
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.keep_alive = _asks_to_stay(cycle)
    cycle.chunked_encoding = False
    cycle.send = plainly  # type: ignore[method-assign]


def _asks_to_stay(cycle: RequestResponseCycle) -> bool:
    """Whether to keep the connection; not if the request is chunked (RFC 9112 6.1)."""
    headers = cycle.scope["headers"]
    if any(name == b"transfer-encoding" for name, _ in headers):
        return False
    values = b",".join(value for name, value in headers if name == b"connection")
    options = {option.strip().lower() for option in values.split(b",")}
    return b"keep-alive" in options and b"close" not in options
