"""How many workers a pool is to have; those that are missing are started.

Loads take turns, see `loads`, and each has a time limit. A worker that dies is replaced after a
growing pause (CONTRACT B4), until replacements have failed for ``max_retry_timeout``. Once too many
hang, none is started any more (DESIGN law 3).
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from kserve_torch.engine.backoff import BackOff, Pauses
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.loads import LOADS
from kserve_torch.engine.roster import Roster
from kserve_torch.engine.ticket import deliver
from kserve_torch.engine.worker import Worker, WorkerState
from kserve_torch.errors import NotReady
from kserve_torch.runtime.reasons import brief

if TYPE_CHECKING:
    from kserve_torch.settings import Limits

log = logging.getLogger(__name__)


class _Start(NamedTuple):
    """A worker that is to load.

    Attributes:
        started: the future of its start.
        clock: the timer that limits its load.
        awaited: whether requests wait for it.
    """

    started: Future[Worker]
    clock: threading.Timer
    awaited: bool


class Staffing:
    """Starts workers on a lane: the minimum, more while requests wait, others for those that died.

    Args:
        limits: how long a worker may take until it is ready, and how long starts may fail until
            there are no more.
        make: makes a worker from its index.
        overdue: called, on a thread of its own, with a worker that takes longer.
        failed: called with a worker whose thread could not be started, and the error.

    Attributes:
        minimum: workers that there are to be, whether or not requests wait.
        maximum: the most.
        given_up: starts have failed for ``max_retry_timeout``.
        reason: why the last worker failed.
    """

    def __init__(
        self,
        lane: Lane,
        roster: Roster,
        limits: Limits,
        make: Callable[[int], Worker],
        overdue: Callable[[Worker], None],
        failed: Callable[[Worker, BaseException], None],
    ) -> None:
        self.minimum = 0
        self.maximum = 0
        self.given_up = False
        self.reason = ""
        self._lane = lane
        self._roster = roster
        self._lock = roster.lock
        self._startup_seconds = min(limits.startup_timeout, threading.TIMEOUT_MAX)
        self._make = make
        self._overdue = overdue
        self._failed = failed
        self._starting: dict[int, _Start] = {}
        self._back_off = BackOff(limits.max_retry_timeout)
        self._pauses = Pauses(self._respawn)
        #: For workers that are started because requests wait: the pauses, and the last one's end.
        self._growth, self._may_grow_at = BackOff(math.inf), -math.inf

    # --- what others ask of it ---

    def bound(self, minimum: int, maximum: int) -> None:
        """Set the bounds, for starts that begin anew."""
        with self._lock:
            self.minimum, self.maximum = minimum, maximum
            self.given_up = False
            self._back_off.reset()

    def coming(self, most: int) -> list[Future[Worker]]:
        """Start up to ``most`` missing workers; returns all starts that are to be waited for."""
        with self._lock:
            if self._roster.ready >= self.minimum:
                return []
            missing = min(most, self.minimum - self._roster.size)
            loading = (self._starting.get(worker.number) for worker in self._roster.staying())
            awaited = [start.started for start in loading if start is not None]
            return [*awaited, *(self._begin() for _ in range(missing))]

    def relieve(self) -> None:
        """Start one more worker, as requests wait too long, if the maximum allows it.

        After a start that failed there is a pause; without a worker, what waits is then refused.
        """
        with self._lock:
            if self._roster.too_many_hang or self._starting or self._roster.size >= self.maximum:
                return
            if time.monotonic() >= self._may_grow_at:
                self._begin(at_once=True)
                return
        self.refuse_if_empty()

    def replace(self, most: int = 1) -> None:
        """Start up to ``most`` workers, each after the next pause, if there are too few."""
        with self._lock:
            coming = self._roster.size + len(self._pauses)
            missing = min(most, self._fewest() - coming)
            while missing > 0 and self._start_later():
                missing -= 1
            gone = not coming and not self._roster.all()  # those that leave may serve what waits
            nobody = gone and (self._roster.too_many_hang or not self.maximum)
        if nobody:
            self._refuse_waiting(self._why_none())

    def end(self) -> None:
        """Start none from now on."""
        with self._lock:
            self.minimum = self.maximum = 0
            self._pauses.cancel()

    # --- what it is told ---

    def ended(self, worker: Worker) -> Future[Worker] | None:
        """Note that a worker loads no more, as its state has changed: the next load may begin.

        Returns:
            The future of its start, for the caller to set; None if that had ended before.
        """
        with self._lock:
            start = self._starting.pop(worker.number, None)
            if start is None:
                return None
            if start.awaited:  # before `relieve`, which waits for the lock, starts the next one
                self._grown(worker.state)
        start.clock.cancel()
        LOADS.end()
        return start.started

    def ready(self) -> None:
        """Note that a worker is ready."""
        self.given_up = False
        self.reason = ""
        self._back_off.started()

    def steady(self) -> None:
        """Note that a worker has served: the next pause is the shortest."""
        self._back_off.reset()

    # --- starting ---

    def _begin(self, at_once: bool = False) -> Future[Worker]:
        """Start a worker in its turn; or ``at_once``, and replace it if that fails.

        Whoever calls `ended` sets the future's result or exception.
        """
        with self._lock:
            worker = self._make(self._roster.free_index())
            clock = threading.Timer(self._startup_seconds, self._overdue, (worker,))
            clock.daemon = True
            started: Future[Worker] = Future()
            self._roster.enter(worker)
            self._starting[worker.number] = _Start(started, clock, at_once)
            if at_once:
                started.add_done_callback(self._replace_failed)
            LOADS.begin(functools.partial(self._load, worker, clock), at_once)
        return started

    def _load(self, worker: Worker, clock: threading.Timer) -> None:
        try:
            clock.start()
            worker.start()
        except RuntimeError as error:  # the system has no more threads
            worker.state = WorkerState.FAILED
            self._failed(worker, error)

    def _grown(self, state: WorkerState) -> None:
        if state in (WorkerState.FAILED, WorkerState.HUNG):
            now = time.monotonic()
            self._may_grow_at = now + (self._growth.next(now) or 0.0)
        else:
            self._growth.reset()

    def _replace_failed(self, started: Future[Worker]) -> None:
        if started.exception() is not None:
            self.replace()

    def _fewest(self) -> int:
        """How many workers there must be now: at least one while requests wait."""
        if self._roster.too_many_hang or self._lane.closed:
            return 0
        return min(max(self.minimum, int(self._lane.waiting > 0)), self.maximum)

    def _start_later(self) -> bool:
        pause = self._back_off.next(time.monotonic())
        try:
            if pause is not None:
                self._pauses.begin(pause)
                return True
            self.given_up = True
        except RuntimeError as error:  # the system has no more threads: the next request tries
            self.reason = brief(error)
        log.error("%s: giving up on starting workers: %s", self._lane.label, self.reason)
        self.refuse_if_empty()
        return False

    def _respawn(self) -> None:
        with self._lock:
            self._pauses.end()
            if self._roster.size < self._fewest():
                self._begin(at_once=True)
                return
        self.replace()

    # --- refusing ---

    def refuse_if_empty(self) -> None:
        """Refuse the waiting requests if there is no worker."""
        if not self._roster.size:
            self._refuse_waiting(f"no worker could be started: {self.reason}")

    def _why_none(self) -> str:
        """Why there is no worker, and none will be started."""
        if self._roster.too_many_hang:
            return f"{self._roster.hung} handler threads are hung"
        return "it has no worker: scale it up to serve requests"

    def _refuse_waiting(self, why: str) -> None:
        error = NotReady(f"{self._lane.label}: {why}")
        deliver([(ticket, error) for ticket in self._lane.flush()])
