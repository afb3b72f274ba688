"""The pauses before lost workers are replaced (CONTRACT B4)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kserve_torch.engine.backoff import BackOff


class Pauses:
    """One pause for each replacement of a pool that is due; its lock is the pool's.

    Args:
        limit: seconds for which failing is put up with.
        over: called on a thread of its own when a pause is over; it begins with `end`.
    """

    def __init__(self, limit: float, over: Callable[[], None]) -> None:
        self._back_off = BackOff(limit)
        self._over = over
        self._timers: list[threading.Timer] = []

    def __len__(self) -> int:
        """How many replacements are due."""
        return len(self._timers)

    def begin(self) -> bool:
        """Wait for the next one; False if failing has lasted too long.

        Raises:
            RuntimeError: the system has no more threads.
        """
        pause = self._back_off.next(time.monotonic())
        if pause is None:
            return False
        timer = threading.Timer(pause, self._over)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)
        return True

    def end(self) -> None:
        """Forget the pause on whose thread this is called."""
        self._timers = [one for one in self._timers if one is not threading.current_thread()]

    def cancel(self) -> None:
        """Replace nobody."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def reset(self) -> None:
        """It works again: the next pause is the shortest."""
        self._back_off.reset()
