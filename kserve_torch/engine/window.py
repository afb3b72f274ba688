"""Which waiting requests become a batch, and when: no clock, no tasks, no threads.

A window holds requests in the order of their arrival. It never splits a request and never lets one
overtake another. A batch is due

- at once, if waiting could not make it larger: it or the window is full, or there is no delay;
- at once, too, if as many requests wait as the largest of the last `LATELY` batches had, and none
  of those was full: then all clients that send again as soon as they are answered have done so;
- else ``max_delay`` after the first request has come and the worker is free, whichever is later, as
  in TorchServe. What comes while the worker is busy is mostly the first part of a group of clients
  that have just been answered, and the others are about to send;
- earlier, where it does not pay to wait (`Patience`): then only requests that come right after each
  other are kept together.

CONTRACT B1; a request with more rows than a batch may have goes alone.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

#: After so many batches in a row that were not full, none waits for more requests than those had.
LATELY = 8


@dataclass(slots=True)
class _Waiting:
    rows: int
    since: float


class Window(Generic[T]):
    """Requests that wait for a worker.

    Args:
        max_rows: rows of a batch, at least 1.
        max_delay: seconds that a free worker lets the first request of a batch wait for more.
        capacity: requests that may wait.

    Attributes:
        share: of ``max_delay``, that it pays to wait.
        pause: seconds after each request in which the next one may come, if it is less than 1.
    """

    def __init__(self, max_rows: int, max_delay: float, capacity: int) -> None:
        self.max_rows = max_rows
        self.max_delay = max_delay
        self.capacity = capacity
        self.rows = 0
        self.share = 1.0
        self.pause = 0.0
        #: Sizes of the last batches, in requests, since one was full or left requests behind.
        #: They are kept for each number of workers that they were formed for.
        self._latelies: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=LATELY))
        self._lately = self._latelies[1]
        self._waiting: OrderedDict[T, _Waiting] = OrderedDict()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def form_for(self, workers: int) -> None:
        """Form batches for so many workers: with each number, the clients come in other groups."""
        self._lately = self._latelies[workers]

    def push(self, item: T, rows: int, now: float) -> bool:
        """Append a request; False if the window is full."""
        if len(self._waiting) >= self.capacity:
            return False
        self._waiting[item] = _Waiting(rows, now)
        self.rows += rows
        return True

    def remove(self, item: T) -> bool:
        """Take out a request; False if it is not here."""
        waiting = self._waiting.pop(item, None)
        if waiting is None:
            return False
        self.rows -= waiting.rows
        return True

    def oldest(self) -> float | None:
        """When the first waiting request arrived, or None."""
        for waiting in self._waiting.values():
            return waiting.since
        return None

    def due(self, now: float, free_since: float = 0.0) -> float | None:
        """Seconds until a batch is due: 0 for now, None while nothing waits.

        Args:
            now: the time.
            free_since: since when the worker that asks has been free.
        """
        since = self.oldest()
        if since is None:
            return None
        if self.is_complete:
            return 0.0
        start = max(since, free_since)
        due = start + self.max_delay
        if self.share < 1.0:
            delay = self.share * self.max_delay if self.share else 0.0  # it may be infinite
            newest = next(reversed(self._waiting.values())).since
            due = min(due, max(start + delay, newest + self.pause))
        return max(0.0, due - now)

    def take(self) -> list[T]:
        """The requests of the next batch, in order; empty if none waits."""
        batch: list[T] = []
        rows = 0
        for item, waiting in self._waiting.items():
            if batch and rows + waiting.rows > self.max_rows:
                break
            batch.append(item)
            rows += waiting.rows
        for item in batch:
            del self._waiting[item]
        self.rows -= rows
        if self._waiting or rows >= self.max_rows:
            self._lately.clear()
        elif batch:
            self._lately.append(len(batch))
        return batch

    @property
    def is_full(self) -> bool:
        """Whether all is here that fits into a batch, or that may wait."""
        return self.rows >= self.max_rows or len(self._waiting) >= self.capacity

    @property
    def is_complete(self) -> bool:
        """Whether there is no need to wait: all that fits is here, or all of the recent clients."""
        lately = self._lately
        return self.is_full or (len(lately) == LATELY and len(self._waiting) == max(lately))
