"""Answers to clients that speak HTTP/1.0 and know no chunked coding."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def without_chunks(cycle: RequestResponseCycle) -> None:
    """Send a body of unknown length as it is; the end of the connection ends it (RFC 9112 6.3)."""
    send = cycle.send

    async def plainly(message: Any) -> None:
        # uvicorn compares each part with what is left of the content-length.
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.chunked_encoding = False
    cycle.send = plainly  # type: ignore[method-assign]
