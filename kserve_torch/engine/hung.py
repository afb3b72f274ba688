"""Workers that hang: Python cannot stop a thread, so it is given up and counted (DESIGN law 3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kserve_torch.engine.batcher import Ticket
from kserve_torch.engine.roster import Roster
from kserve_torch.engine.worker import Worker, WorkerState

log = logging.getLogger(__name__)

#: Threads that may hang before the model is given up and liveness fails.
HUNG_LIMIT = 4


class Hung:
    """The workers of one pool that were given up and have not come back.

    Args:
        roster: the pool's workers.
        label: their queue's, for the log.

    Attributes:
        too_many: only a new process helps. Asked for with each request.
    """

    def __init__(self, roster: Roster, label: str) -> None:
        self.too_many = False
        self._roster = roster
        self._label = label

    def __len__(self) -> int:
        """How many threads hang."""
        return self._roster.hung

    def late(self, limit: float, now: float) -> tuple[list[tuple[Worker, float]], float | None]:
        """Whose call runs too long.

        Args:
            limit: seconds that a call may run.
            now: ``time.monotonic()``.

        Returns:
            The workers, each with when its call began; and seconds until the next one is late,
            None if no other call runs.
        """
        began = [
            (worker, since)
            for worker in self._roster.all()
            if worker.state is not WorkerState.LOADING
            and (since := worker.busy_since()) is not None
        ]
        late = [(worker, since) for worker, since in began if since + limit <= now]
        left = (since + limit - now for _, since in began if since + limit > now)
        return late, min(left, default=None)

    def take(self, worker: Worker, since: float) -> Sequence[Ticket] | None:
        """Give up the worker whose load or call began at ``since``.

        Returns:
            The tickets that somebody else must answer; None if it has got on.
        """
        with self._roster.lock:  # its thread may end at once, and is to find itself among them
            batch = worker.abandon(since)
            if batch is not None:
                self._roster.hang(worker)
                self._count()
            return batch

    def came_back(self, worker: Worker) -> bool:
        """Note that a thread which hung has ended after all; False if that is known."""
        with self._roster.lock:
            known = self._roster.came_back(worker)
            self._count()
        if known:
            log.info("%s: worker %d is no longer hung", self._label, worker.number)
        return known

    def _count(self) -> None:
        self.too_many = len(self) >= HUNG_LIMIT
