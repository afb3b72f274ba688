"""How long to wait before a worker is started in place of a lost one (CONTRACT B4): no clock."""

from __future__ import annotations

#: Seconds before the n-th replacement in a row; the last one repeats.
BACK_OFF = (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55)


class BackOff:
    """The pauses of one pool.

    Args:
        limit: seconds for which failing is put up with.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._failures = 0
        self._since = 0.0

    def next(self, now: float) -> float | None:
        """Seconds to wait before the next start; None if it has failed for too long."""
        if self._failures == 0:
            self._since = now
        elif now - self._since > self._limit:
            return None
        pause = BACK_OFF[min(self._failures, len(BACK_OFF) - 1)]
        self._failures += 1
        return pause

    def reset(self) -> None:
        """It works again."""
        self._failures = 0
