"""How long it pays to wait for more rows, by the last batches of a queue; without a clock.

Larger batches save workers time. That is worth a wait where they have none to spare, or where the
requests come in groups that fill a batch; else each request only waits for others in vain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

#: Batches by which it is judged: fewer tell too little about the requests that are to come.
RECENT = 32
#: If more than this share of them was full, requests come in groups.
FULL = 0.25
#: The share of their time that workers compute up to which none waits, and from which on all do.
IDLE, BUSY = 0.7, 0.9
#: Requests that were sent together come within so many seconds of each other, or within this share
#: of the time that a batch takes: if that is long, a batch less saves more than the wait costs.
TOGETHER, TOGETHER_SHARE = 0.001, 0.25


@dataclass(frozen=True, slots=True)
class _Batch:
    began: float
    seconds: float
    full: bool


class Patience:
    """Watches the batches of a queue; not safe on several threads."""

    def __init__(self) -> None:
        self._running: dict[Hashable, tuple[float, bool]] = {}
        self._recent: deque[_Batch] = deque()
        #: Sums over them.
        self._seconds, self._full = 0.0, 0

    def begin(self, worker: Hashable, now: float, full: bool) -> None:
        """Note that a worker begins a batch, and whether that has all the rows that it may have."""
        self._running[worker] = now, full

    def forget(self, worker: Hashable) -> None:
        """Forget the batch of a worker that does not end it."""
        self._running.pop(worker, None)

    def end(self, worker: Hashable, now: float) -> None:
        """Note that a worker has ended its batch, if it had one."""
        if running := self._running.pop(worker, None):
            began, full = running
            self._recent.append(_Batch(began, now - began, full))
            self._seconds += now - began
            self._full += full
            if len(self._recent) > RECENT:
                oldest = self._recent.popleft()
                self._seconds -= oldest.seconds
                self._full -= oldest.full

    def share(self, now: float, workers: int) -> float:
        """The share of the longest wait that pays: from 0.0, if workers have time, to 1.0.

        Args:
            now: the time.
            workers: how many there are.
        """
        if len(self._recent) < RECENT or self._full > FULL * RECENT:
            return 1.0
        could = (now - self._recent[0].began) * workers
        used = self._seconds / could if could > 0 else 1.0
        return min(1.0, max(0.0, (used - IDLE) / (BUSY - IDLE)))

    @property
    def pause(self) -> float:
        """Seconds after a request in which others come that were sent together with it."""
        return max(TOGETHER, TOGETHER_SHARE * self._seconds / max(1, len(self._recent)))
