"""A transport that sends the head of an answer and its body in one packet."""

from __future__ import annotations

import asyncio
from typing import Any


class Corked:
    """A transport that holds a head back for one turn of the loop, to send it with its body.

    Args:
        transport: what is written to; all but writing and closing goes straight to it.
        loop: its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write ``data`` behind a head that was held back; hold ``data`` back if it is a head.

        Nothing is written after the end of the connection.
        """
        if self._transport.is_closing():
            return
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            # For heads without a body: HEAD, 204, 100 Continue.
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Write what was held back, then close."""
        self._flush()
        self._transport.close()
