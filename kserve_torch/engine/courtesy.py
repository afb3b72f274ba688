"""How workers in the background give way to those in the foreground.

Their threads have a lower priority, and only one of them runs at a time while the foreground is
busy: a second one would take the foreground's core, and the interpreter's lock with it.

A container's CPU limit knows no priorities: on a node with idle cores all threads run until the
quota is used up, and then all of them are throttled. So after a turn that used more than the limit,
a background worker sleeps until the average is back within it.
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

#: Niceness of a background worker's thread, of at most 19; Linux has one per thread.
NICE = 10
#: Seconds that a worker waits for its turn; then it runs beside the other one.
PATIENCE_SECONDS = 1.0
#: Most seconds of sleep after a turn. This is the period of Linux's quota: for what was used in
#: earlier periods, the process has been throttled already.
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

    def lower_priority(self) -> None:
        """Lower the priority of the calling thread, on Linux."""
        if sys.platform != "linux":
            return  # elsewhere a thread's id may be the id of another process
        thread = threading.get_native_id()
        try:
            nice = max(NICE, os.getpriority(os.PRIO_PROCESS, thread))
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        except OSError as error:
            log.info("per-thread priorities are not available: %s", error)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block: one at a time if the foreground is busy, else beside other turns."""
        lock = self._lock
        alone = self._busy() and lock.acquire(timeout=PATIENCE_SECONDS)
        began, used = time.monotonic(), time.process_time()
        try:
            yield
            self._rest(time.process_time() - used, time.monotonic() - began)
        finally:
            if alone:
                lock.release()

    def give_up_turn(self) -> None:
        """Let others have their turn although one has not ended: it hangs."""
        self._lock = threading.Lock()

    def _rest(self, used: float, elapsed: float) -> None:
        """Sleep until ``used`` seconds of CPU time are within the limit; at most `LONGEST_REST`."""
        if self._limit is not None:
            time.sleep(min(max(0.0, used / self._limit - elapsed), LONGEST_REST))
