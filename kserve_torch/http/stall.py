"""Answers that nobody takes."""

from __future__ import annotations

import asyncio


class Stall:
    """Ends a connection whose client takes nothing of the answer that waits for it.

    Args:
        transport: of the connection.
        loop: its event loop.
        seconds: that a client may take for the next bytes.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """More waits than the client takes at once."""
        self.end()
        waiting = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._check, waiting)

    def _check(self, waited: int) -> None:
        if self._transport.get_write_buffer_size() < waited:
            self.watch()
        else:
            self._transport.abort()

    def end(self) -> None:
        """It has taken most of it, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
