"""The pauses before lost workers are replaced (CONTRACT B4)."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Seconds before the n-th replacement in a row; the last one repeats.
BACK_OFF = (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55)


class BackOff:
    """How long each pause is; the time is passed in.

    Args:
        limit: seconds of failed starts after which no more workers are started.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._failures = 0
        self._since: float | None = None

    def next(self, now: float) -> float | None:
        """Seconds to wait before the next start; None once starts have failed for too long."""
        if self._since is None:
            self._since = now
        elif now - self._since > self._limit:
            return None
        pause = BACK_OFF[min(self._failures, len(BACK_OFF) - 1)]
        self._failures += 1
        return pause

    def started(self) -> None:
        """Begin to count the limit anew: a start has succeeded. The pauses stay as long."""
        self._since = None

    def reset(self) -> None:
        """Start over with the shortest pause: a worker has succeeded."""
        self._failures = 0
        self._since = None


class Pauses:
    """One timer per pending replacement of a pool; call it with the pool's lock held.

    Args:
        over: called on the timer's thread when a pause is over; it calls `end` first.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over
        self._timers: list[threading.Timer] = []

    def __len__(self) -> int:
        """How many replacements are pending."""
        return len(self._timers)

    def begin(self, seconds: float) -> None:
        """Schedule the next replacement.

        Raises:
            RuntimeError: the system has no more threads.
        """
        timer = threading.Timer(seconds, self._over)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def end(self) -> None:
        """Forget the timer on whose thread this is called."""
        self._timers = [one for one in self._timers if one is not threading.current_thread()]

    def cancel(self) -> None:
        """Cancel all pending replacements."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []
