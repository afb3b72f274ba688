"""How workers in the background give way to those in the foreground.

Their threads have a lower priority, and while the foreground is at work only one of them runs at a
time: a second one would take the core that the foreground computes on, and the interpreter's lock
with it. Priorities mean nothing to a container's CPU limit, though: on a node with idle cores all
threads run, until the share of time is used up and all stand still. What a turn has used beyond the
limit is waited for before the next one.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

#: Niceness of a background worker's thread, of 19; Linux has one for each thread.
NICE = 10
#: Seconds that one waits for its turn; then it runs beside the other all the same.
PATIENCE_SECONDS = 1.0
#: Seconds that one waits after its turn, at most: what was used up longer ago is paid for already.
LONGEST_REST = 0.1


class Courtesy:
    """Shared by the background workers of one model version.

    Args:
        busy: whether the foreground is at work; called on any thread.
        limit: cores that the process may keep busy on average; None for all there are.
    """

    def __init__(self, busy: Callable[[], bool], limit: float | None = None) -> None:
        self._busy = busy
        self._limit = limit
        self._lock = threading.Lock()

    def step_back(self) -> None:
        """Let the calling thread run when others do not want the processor, on Linux."""
        if sys.platform != "linux":
            return  # elsewhere the number of a thread may be that of another process
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        except OSError as error:
            log.info("per-thread priorities are not available: %s", error)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Work in the block: alone if the foreground is busy, beside the others if it is not."""
        alone = self._busy() and self._lock.acquire(timeout=PATIENCE_SECONDS)
        began, used = time.monotonic(), time.process_time()
        try:
            yield
            self._rest(time.process_time() - used, time.monotonic() - began)
        finally:
            if alone:
                self._lock.release()

    def _rest(self, used: float, elapsed: float) -> None:
        """Wait until ``used`` seconds of the processor's time are no more than the limit allows."""
        if self._limit is not None:
            time.sleep(min(max(0.0, used / self._limit - elapsed), LONGEST_REST))
