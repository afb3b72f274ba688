"""A streaming handler's intermediate results, on their way from its thread to the event loop."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kserve_torch.errors import RequestTimeout
from kserve_torch.messages import RowReply

#: Bytes that may be queued for a client; beyond that, the handler that sends them waits.
MOST_BYTES = 64 * 1024 * 1024
#: The same for an asynchronous handler, which cannot wait: other requests share its event loop.
MOST_UNAWAITED_BYTES = 4 * MOST_BYTES
#: Seconds in which a client that is so far behind must catch up: other clients wait for the worker,
#: in the same batch and after it.
PATIENCE_SECONDS = 10.0
#: Results after which the rest of the event loop has its turn, though more are waiting.
TURN = 16


class Emissions:
    """Takes intermediate results from a worker's thread to the event loop.

    Attributes:
        started: whether there was one, see `Request.partly_answered`.
    """

    def __init__(self) -> None:
        self.started = False
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Mapping[int, RowReply] | RequestTimeout | None] = asyncio.Queue()
        self._answering: asyncio.Future[Any] | None = None
        self._ended = False
        #: Guards what follows, and wakes the handler's thread when it changes.
        self._room = threading.Condition()
        self._waiting = 0
        #: ``time.monotonic()`` at which the client must have caught up.
        self._late = math.inf
        self._taken = 0

    def until(self, answering: asyncio.Future[Any]) -> None:
        """End with the request that ``answering`` waits for; a client that is given up ends it."""
        self._answering = answering
        answering.add_done_callback(lambda _: self.end())

    def __call__(self, rows: Mapping[int, RowReply]) -> None:
        """Hand over intermediate results of some rows; on any thread but the event loop's.

        Waits for a client that is `MOST_BYTES` behind, unless on an event loop, and gives it up if
        it stays behind. After the end, results are dropped.
        """
        self.started = True
        with self._room:
            if not self._catches_up():
                self._ended = True
                self._loop.call_soon_threadsafe(self._give_up)
            if self._ended:
                return
            self._waiting += _size(rows)
            if self._waiting >= MOST_BYTES:  # not from its wait on: several clients' overlap
                self._late = min(self._late, time.monotonic() + PATIENCE_SECONDS)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, rows)

    def _catches_up(self) -> bool:
        left = self._late - time.monotonic()
        if asyncio._get_running_loop() is None:
            return self._room.wait_for(self._has_room, left)
        return self._ended or (left > 0 and self._waiting < MOST_UNAWAITED_BYTES)

    def _has_room(self) -> bool:
        return self._ended or self._waiting < MOST_BYTES

    def _give_up(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(RequestTimeout("the client did not take what the handler sent"))
        if self._answering is not None:
            self._answering.cancel()

    def end(self) -> None:
        """Note that no more will come, or is wanted; on the event loop only."""
        with self._room:
            self._ended = True
            self._room.notify_all()
        self._queue.put_nowait(None)

    def __aiter__(self) -> Emissions:
        return self

    async def __anext__(self) -> Mapping[int, RowReply]:
        """The next intermediate results.

        Raises:
            RequestTimeout: the client was too far behind for too long.
        """
        self._taken += 1
        if self._taken % TURN == 0:
            await asyncio.sleep(0)  # a queue that is not empty does not wait
        rows = await self._queue.get()
        if rows is None:
            raise StopAsyncIteration
        if isinstance(rows, RequestTimeout):
            raise rows
        with self._room:
            self._waiting -= _size(rows)
            if not self._waiting:
                self._late = math.inf
            self._room.notify_all()
        return rows


def _size(rows: Mapping[int, RowReply]) -> int:
    """An estimate of their bytes, never 0; what lists and dicts contain is not counted."""
    return sum(1000 + _bytes(row.result) for row in rows.values())


def _bytes(result: Any) -> int:
    size = sys.getsizeof(result)
    with suppress(AttributeError, RuntimeError):  # sparse tensors have the attribute, and raise
        size = max(size, result.nbytes)
    return size
