"""Workers that hang: Python cannot stop a thread, so it is given up and counted (DESIGN law 3)."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from traceback import walk_stack

from kserve_torch.engine.batcher import Ticket
from kserve_torch.engine.roster import Roster
from kserve_torch.engine.worker import Worker, WorkerState
from kserve_torch.namespace.scopes import PREFIX

log = logging.getLogger(__name__)

#: Threads that may hang before the model is given up and liveness fails.
HUNG_LIMIT = 4
#: The innermost calls of a thread that are told, and the most, with those of archives' code.
_INNERMOST, _MOST = 3, 10


class Hung:
    """The workers of one pool that were given up and still hang.

    Attributes:
        too_many: `HUNG_LIMIT` is reached: only a new process helps. A plain attribute, because
            every request reads it.
    """

    def __init__(self, roster: Roster, label: str) -> None:
        self.too_many = False
        self._roster = roster
        self._label = label
        self._workers: set[Worker] = set()

    def __len__(self) -> int:
        """How many threads hang."""
        return len(self._workers)

    def __str__(self) -> str:
        return f"{len(self)} handler threads are hung"

    def late(self, limit: float, now: float) -> tuple[list[tuple[Worker, float]], float | None]:
        """The workers whose call takes too long.

        Args:
            limit: seconds that a call may take.
            now: ``time.monotonic()``.

        Returns:
            These workers, each with the time at which its call began; and the seconds until the
            next call is late, None if no other call runs.
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
        """Give up a worker whose load or call began at ``since``.

        Returns:
            The tickets that the caller must answer; None if the load or call has ended meanwhile.
        """
        with self._roster.lock:  # if its thread ends at once, `came_back` must find it
            batch = worker.abandon(since)
            if batch is not None:
                self._roster.give_up(worker)
                self._workers.add(worker)
                self._count()
            return batch

    def came_back(self, worker: Worker) -> None:
        """Note that a hung thread ends after all."""
        with self._roster.lock:
            self._workers.discard(worker)
            self._count()
            worker.state = WorkerState.STOPPED
        log.info("%s: worker %d is no longer hung", self._label, worker.number)

    def _count(self) -> None:
        self.too_many = len(self) >= HUNG_LIMIT


def place_of(thread: threading.Thread) -> str:
    """Where a thread is, for the log: its innermost calls, and those in archives' files.

    Returns:
        ``client.py:52 in read < handler.py:9 in handle``, innermost first; "" if it has ended.
    """
    innermost = sys._current_frames().get(thread.ident or 0)
    frames = () if innermost is None else walk_stack(innermost)
    told = [
        f"{os.path.basename(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
        for depth, (frame, line) in enumerate(frames)
        if depth < _INNERMOST or str(frame.f_globals.get("__name__")).startswith(PREFIX)
    ]
    return " < ".join(told[:_MOST])
