"""A streaming handler's intermediate results, on their way from its thread to the event loop."""

from __future__ import annotations

import asyncio

from kserve_torch.messages import RowReply


class Emissions:
    """Takes intermediate results from a worker's thread to the event loop.

    It is true once there was one: part of the answer is with the client then, and the engine must
    not run such a request a second time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[RowReply | None] = asyncio.Queue()
        self._started = False

    def __bool__(self) -> bool:
        return self._started

    def __call__(self, row: RowReply) -> None:
        """Hand over an intermediate result; on any thread."""
        self._started = True
        self._loop.call_soon_threadsafe(self._queue.put_nowait, row)

    def end(self) -> None:
        """Say that no more will come; on the event loop only."""
        self._queue.put_nowait(None)

    async def next(self) -> RowReply | None:
        """The next intermediate result, None after the last one."""
        return await self._queue.get()
