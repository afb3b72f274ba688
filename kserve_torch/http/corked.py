"""A transport that sends the head of an answer and its body in one packet."""

from __future__ import annotations

import asyncio
from typing import Any


class Corked:
    """A transport that waits a turn of the loop for a head's body: one packet, not two.

    Args:
        transport: what is written to; everything but writing and closing is its own.
        loop: its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write ``data``, and before it the head that was kept back; keep a head back itself.

        What comes after the end of the connection is dropped.
        """
        if self._transport.is_closing():
            return
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            # Not every head has a body: HEAD, 204, 100 Continue.
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Write what was kept back, then close."""
        self._flush()
        self._transport.close()
