"""Clients that do not read their answers."""

from __future__ import annotations

import asyncio


class Stall:
    """Aborts a connection whose client reads nothing of the answer that waits for it.

    Args:
        transport: of the connection.
        loop: its event loop.
        seconds: for which a client may read nothing.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Start to watch: the write buffer is full."""
        self.end()
        waiting = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._check, waiting)

    def _check(self, waited: int) -> None:
        if self._transport.get_write_buffer_size() < waited:
            self.watch()
        else:
            self._transport.abort()

    def end(self) -> None:
        """Stop: the client has read most of it, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
