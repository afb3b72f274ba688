"""How many workers load at a time.

Loads share the cores and the interpreter's lock. If all models of a large store loaded at once,
each would take as long as all of them together, and none be ready within ``startupTimeout``;
requests would wait for the lock behind every one of them. So further loads wait for their turn,
unless those that run leave the process idle: such loads wait for a disk or a network. Workers for
which requests wait load at once: else their model would refuse these until all others have loaded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from kserve_torch.runtime.machine import cores

#: Loads that run at a time, also on fewer cores: while one reads, another computes.
FEWEST = 4
#: Seconds between two looks at whether the process is idle, while loads wait.
LOOK_SECONDS = 0.25
#: The share of one core below which it counts as idle. It is small because other programs may leave
#: the process little of a core though it has work.
IDLE = 0.1


class Loads:
    """Lets loads begin, each in its turn; safe on any thread.

    They begin on one thread, which the first one starts. A new thread has the priority and the
    cores of the one that starts it: the one that loads explanations has a lower priority, and
    handlers may choose the cores of theirs.

    Args:
        most: how many run at a time while the process is busy.
    """

    def __init__(self, most: int) -> None:
        self._most = self._allowed = most
        self._running = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._beginner: threading.Thread | None = None

    def begin(self, start: Callable[[], None], at_once: bool = False) -> None:
        """Call ``start`` when it is its turn, on another thread, or here and ``at_once``."""
        if at_once:
            with self._changed:
                self._running += 1
            start()
            return
        with self._changed:
            self._waiting.append(start)
            self._changed.notify()
            if self._beginner is None:
                beginner = threading.Thread(target=self._main, name="loads", daemon=True)
                beginner.start()
                self._beginner = beginner

    def end(self) -> None:
        """Note that a load has ended, or was given up."""
        with self._changed:
            self._running -= 1
            self._changed.notify()

    def _main(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
            before = time.process_time()
            self._begin_until(time.monotonic() + LOOK_SECONDS)
            idle = time.process_time() - before < IDLE * LOOK_SECONDS
            with self._changed:
                if idle and self._waiting:
                    self._allowed += self._most

    def _begin_until(self, ends: float) -> None:
        while start := self._next(ends - time.monotonic()):
            with suppress(Exception):  # whatever becomes of one, the others have their turn
                start()

    def _next(self, seconds: float) -> Callable[[], None] | None:
        """Wait for the next one that may begin, up to so many seconds; None if there is none."""
        with self._changed:
            if not self._changed.wait_for(self._may_begin, max(0.0, seconds)):
                return None
            self._running += 1
            start = self._waiting.popleft()
            if not self._waiting:
                self._allowed = self._most
            return start

    def _may_begin(self) -> bool:
        return bool(self._waiting) and self._running < self._allowed


#: The loads of all models of this process.
LOADS = Loads(max(FEWEST, cores()))
