"""Workers that are being started, each with a time limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from kserve_torch.engine.roster import Roster
from kserve_torch.engine.worker import Worker, WorkerState


class Start(NamedTuple):
    """A worker that is loading: the future of its start, and the timer that limits it."""

    started: Future[Worker]
    clock: threading.Timer


class Starts:
    """Starts the workers of one pool and adds them to its roster.

    Args:
        roster: the pool's workers.
        make: makes a worker from its index.
        seconds: how long a worker may take until it is ready.
        overdue: called, on a thread of its own, with a worker that takes longer.
        failed: called with a worker whose thread could not be started, and the error.
    """

    def __init__(
        self,
        roster: Roster,
        make: Callable[[int], Worker],
        seconds: float,
        overdue: Callable[[Worker], None],
        failed: Callable[[Worker, BaseException], None],
    ) -> None:
        self._roster = roster
        self._make = make
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._overdue = overdue
        self._failed = failed
        self._starts: dict[int, Start] = {}

    def __len__(self) -> int:
        """How many workers are loading."""
        return len(self._starts)

    def awaited(self) -> list[Future[Worker]]:
        """The starts of workers that are to stay."""
        with self._roster.lock:
            numbers = {worker.number for worker in self._roster.staying()}
            return [start.started for number, start in self._starts.items() if number in numbers]

    def begin(self) -> Future[Worker]:
        """Start a worker; whoever calls `end` sets the future's result or exception."""
        with self._roster.lock:
            worker = self._make(self._roster.free_index())
            start = Start(Future(), threading.Timer(self._seconds, self._overdue, (worker,)))
            start.clock.daemon = True
            self._roster.enter(worker)
            self._starts[worker.number] = start
            try:
                start.clock.start()
                worker.start()
            except RuntimeError as error:  # the system has no more threads
                worker.state = WorkerState.FAILED
                self._failed(worker, error)
        return start.started

    def end(self, worker: Worker) -> Future[Worker] | None:
        """Stop the timer; returns the start's future, or None if the start had ended before."""
        with self._roster.lock:
            start = self._starts.pop(worker.number, None)
        if start is None:
            return None
        start.clock.cancel()
        return start.started
