"""How many workers load at a time.

Loads share the cores and the interpreter's lock. If all models of a large store loaded at once,
each would take as long as all of them together, and none be ready within ``startupTimeout``;
requests would wait for the lock behind every one of them. So further loads wait for their turn,
unless those that run leave the process idle: such loads wait for a disk or a network. Workers for
which requests wait do not: their model would be refused until all others have loaded.
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
#: How often it is looked whether the process is idle while loads wait, in seconds.
LOOK_SECONDS = 0.25
#: The share of one core below which it counts as idle. No more, as it may get little from other
#: programs.
IDLE = 0.1


class Loads:
    """Lets loads begin, each in its turn; safe on any thread.

    Args:
        most: how many run at a time while the process is busy.
    """

    def __init__(self, most: int) -> None:
        self._most = self._allowed = most
        self._running = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()

    def begin(self, start: Callable[[], None], at_once: bool = False) -> None:
        """Call ``start`` when it is its turn, now or later on another thread, or ``at_once``."""
        if at_once:
            with self._lock:
                self._running += 1
            start()
            return
        with self._lock:
            self._waiting.append(start)
            first = len(self._waiting) == 1
        self._go_on()
        if first:
            self._look_later()

    def end(self) -> None:
        """Note that a load has ended, or was given up."""
        with self._lock:
            self._running -= 1
        self._go_on()

    def _go_on(self) -> None:
        while start := self._next():
            start()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if not self._waiting:
                self._allowed = self._most
            elif self._running < self._allowed:
                self._running += 1
                return self._waiting.popleft()
            return None

    def _look_later(self) -> None:
        if self._waiting:
            looker = threading.Timer(LOOK_SECONDS, self._look, (time.process_time(),))
            looker.daemon = True
            with suppress(RuntimeError):  # the system has no more threads: an end lets them go on
                looker.start()

    def _look(self, before: float) -> None:
        if time.process_time() - before < IDLE * LOOK_SECONDS:
            with self._lock:
                self._allowed += self._most
            self._go_on()
        self._look_later()


#: The loads of all models of this process.
LOADS = Loads(max(FEWEST, cores()))
