"""Looks for handler calls that hang, as long as there is one that could."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from kserve_torch.engine.pool import Pool


class Watch:
    """Has workers given up whose calls run too long.

    A call may go on when the one who asked has left, and keeps its worker from others.

    Args:
        pools: the workers.
        seconds: how long a call may run.
        inflight: how many requests wait or run.
    """

    def __init__(self, pools: Sequence[Pool], seconds: float, inflight: Callable[[], int]) -> None:
        self._pools = pools
        self._seconds = seconds
        self._inflight = inflight
        self._next: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Look out from now on, until no call runs and no request waits; on the event loop."""
        if self._next is None:
            self._look_in(self._seconds)

    def end(self) -> None:
        """Look no more."""
        if self._next is not None:
            self._next.cancel()

    def _look_in(self, seconds: float) -> None:
        self._next = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._next = None
        left = [pool.give_up_hung() for pool in self._pools]
        soonest = min((wait for wait in left if wait is not None), default=None)
        if soonest is None and self._inflight():
            soonest = self._seconds
        if soonest is not None:
            self._look_in(soonest)
