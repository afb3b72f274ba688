"""Workers that are being started, each with a limit of time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from kserve_torch.engine.roster import Roster
from kserve_torch.engine.worker import Worker, WorkerState


class Start(NamedTuple):
    """A worker that loads: who waits for it, and what ends the waiting."""

    started: Future[Worker]
    clock: threading.Timer


class Starts:
    """Starts the workers of one pool and enters them into its roster.

    Args:
        roster: the pool's workers.
        make: makes the worker with an index.
        seconds: how long one may take until it is ready.
        overdue: told of one that took longer, on a thread of its own.
        failed: told of one whose thread could not be started, and why.
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
        """How many load now."""
        return len(self._starts)

    def awaited(self) -> list[Future[Worker]]:
        """Those that load and stay."""
        with self._roster.lock:
            numbers = {worker.number for worker in self._roster.staying()}
            return [start.started for number, start in self._starts.items() if number in numbers]

    def begin(self) -> Future[Worker]:
        """Start a worker; whoever ends the start says in the future how it went."""
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
        """Stop the clock; returns who waits for the worker, None if its start has ended before."""
        with self._roster.lock:
            start = self._starts.pop(worker.number, None)
        if start is None:
            return None
        start.clock.cancel()
        return start.started
