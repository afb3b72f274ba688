"""Looks for handler calls that hang, while there are any calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kserve_torch.engine.pool import Pool


class Watch:
    """Gives up workers whose calls take too long.

    It does not go by the requests alone: a call whose clients have left still blocks its worker.

    Args:
        pools: the workers.
        seconds: how long a call may take.
        inflight: how many requests wait or run.
    """

    def __init__(self, pools: Sequence[Pool], seconds: float, inflight: Callable[[], int]) -> None:
        self._pools = pools
        self._seconds = seconds
        self._inflight = inflight
        self._next: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Watch until no call runs and no request waits; on an event loop."""
        # A `TorchModel` may be called on one loop after the other, and the first kept for later.
        if self._loop is None or not self._loop.is_running():
            self._look_in(self._seconds)

    def end(self) -> None:
        """Stop watching."""
        if self._next is not None:
            self._next.cancel()

    def _look_in(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._loop = None
        left = [pool.give_up_hung() for pool in self._pools]
        soonest = min((wait for wait in left if wait is not None), default=None)
        if soonest is None and self._inflight():
            soonest = self._seconds
        if soonest is not None:
            self._look_in(soonest)
