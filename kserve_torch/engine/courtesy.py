"""How workers in the background give way to those in the foreground.

Their threads have a lower priority, and while the foreground is at work only one of them runs at a
time: a second one would take the core that the foreground computes on, and the interpreter's lock
with it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

#: Niceness of a background worker's thread, of 19; Linux has one for each thread.
NICE = 10
#: Seconds that one waits for its turn; then it runs beside the other all the same.
PATIENCE_SECONDS = 1.0


class Courtesy:
    """Shared by the background workers of one model version.

    Args:
        busy: whether the foreground is at work; called on any thread.
    """

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._lock = threading.Lock()

    def step_back(self) -> None:
        """Let the calling thread run when others do not want the processor, on Linux."""
        if sys.platform != "linux":
            return  # elsewhere the number of a thread may be that of another process
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        except OSError as error:
            log.info("threads have no priorities of their own here: %s", error)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Work in the block: alone if the foreground is busy, beside the others if it is not."""
        alone = self._busy() and self._lock.acquire(timeout=PATIENCE_SECONDS)
        try:
            yield
        finally:
            if alone:
                self._lock.release()
