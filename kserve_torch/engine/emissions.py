"""A streaming handler's intermediate results, on their way from its thread to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kserve_torch.messages import RowReply


class Emissions:
    """Takes intermediate results from a worker's thread to the event loop.

    It is true once there was one: part of the answer is with the client then, and the engine must
    not run such a request a second time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Mapping[int, RowReply] | None] = asyncio.Queue()
        self._started = False

    def __bool__(self) -> bool:
        return self._started

    def __call__(self, rows: Mapping[int, RowReply]) -> None:
        """Hand over intermediate results of some rows; on any thread."""
        self._started = True
        self._loop.call_soon_threadsafe(self._queue.put_nowait, rows)

    def end(self) -> None:
        """Say that no more will come; on the event loop only."""
        self._queue.put_nowait(None)

    async def next(self) -> Mapping[int, RowReply] | None:
        """The next intermediate results, None after the last ones."""
        return await self._queue.get()

    def __aiter__(self) -> Emissions:
        return self

    async def __anext__(self) -> Mapping[int, RowReply]:
        rows = await self.next()
        if rows is None:
            raise StopAsyncIteration
        return rows
