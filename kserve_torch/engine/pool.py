"""The workers of one queue: what becomes of each, from its start to its end.

One that hangs, in a call or while loading, is given up: Python cannot stop its thread, so the
thread is counted and its requests are answered. `staffing` replaces it, and those that die.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from kserve_torch.engine.courtesy import Courtesy
from kserve_torch.engine.failures import LONGEST_ID
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.place import place_of
from kserve_torch.engine.roster import Roster
from kserve_torch.engine.staffing import Staffing
from kserve_torch.engine.threads import CallThreads
from kserve_torch.engine.ticket import Ticket, deliver
from kserve_torch.engine.worker import Worker, WorkerState, too_slow
from kserve_torch.errors import LoadFailed, NotReady, ServingError
from kserve_torch.events import BatchRan
from kserve_torch.runtime.reasons import brief

if TYPE_CHECKING:
    from kserve_torch.runtime.instance import Instance
    from kserve_torch.settings import Limits

log = logging.getLogger(__name__)

#: Seconds that the oldest request must have waited for a worker before another is started.
PRESSURE_SECONDS = 0.05
#: A pool counts as busy for so many seconds after it formed a batch.
BUSY_SECONDS = 0.1
#: A worker that dies after so many seconds of service resets the pauses before replacements.
STEADY_SECONDS = 60.0


class Pool:
    """Keeps between ``minimum`` and ``maximum`` workers on a lane.

    Args:
        load: makes an instance from the worker's index, the lowest free one; called on the worker's
            thread.
        ran: called on the event loop after each batch.
        changed: called on any thread whenever a worker changes its state.
        limits: time-outs for starts, for calls, and for repeated failures to start.
        courtesy: how workers in the background give way to others; None in the foreground. In the
            background the cores are shared by as many workers as there may be, in the foreground by
            as many as there always are.
        crowded: whether others compute beside these workers.

    Attributes:
        patience: the pressure (see `Lane.pressure`) above which another worker is started. In the
            background 0: what runs there takes long.
        inflight: requests that are accepted and not yet answered.
        roster: the workers.
        staffing: how many there are to be.
    """

    def __init__(
        self,
        lane: Lane,
        load: Callable[[int], Instance],
        ran: Callable[[BatchRan], None],
        changed: Callable[[Worker], None],
        limits: Limits,
        courtesy: Courtesy | None = None,
        crowded: Callable[[], bool] = lambda: False,
        kind: type[Worker] = Worker,
    ) -> None:
        self.lane = lane
        self.roster = Roster()
        self._load = load
        self._ran = ran
        self._changed_hook = changed
        self._limits = limits
        self.patience = PRESSURE_SECONDS if courtesy is None else 0.0
        self.inflight = 0
        self._courtesy = courtesy
        self._crowded = crowded
        self._kind = kind
        self._lock = self.roster.lock
        self.staffing = Staffing(
            lane, self.roster, limits, self._worker, self._overdue, self._changed
        )

    # --- what others ask of it ---

    @property
    def running(self) -> int:
        """Requests in batches that run now."""
        return sum(worker.running for worker in self.roster.all())

    @property
    def busy(self) -> bool:
        """Whether a batch runs, or was formed within `BUSY_SECONDS`."""
        return time.monotonic() - self.lane.last_batch < BUSY_SECONDS or bool(self.running)

    def is_short(self, ticket: Ticket) -> bool:
        """Whether it has too few workers, judged by a request that has just come."""
        if self._courtesy is not None:
            return self.inflight >= self.roster.size  # it would wait for one that runs
        return ticket.pressure > self.patience or not self.roster.size

    async def scale(self, minimum: int, maximum: int) -> None:
        """Bring the number of workers within the bounds and wait until they are ready.

        Those that leave stop after their batch; if all do, first what waits is served.

        Raises:
            LoadFailed: a worker could not be started.
            NotReady: one was not ready in time.
        """
        with self._lock:
            self.staffing.bound(minimum, maximum)
            staying = self.roster.staying()[:maximum]
            leaving = [worker for worker in self.roster.all() if worker not in staying]
            self._dismiss(leaving, Worker.stop if maximum else Worker.finish)
        # Those that are starting already, then one, then all others, which share its weights.
        for most in (0, 1, maximum):
            starts = map(asyncio.wrap_future, self.staffing.coming(most))
            await asyncio.gather(*map(asyncio.shield, starts))  # cancelling it stops no worker

    def give_up_hung(self) -> float | None:
        """Abandon workers whose handler call runs for ``response_timeout`` or more.

        Returns:
            Seconds until the next call could pass the limit, None if none runs.
        """
        limit = self._limits.response_timeout
        error = too_slow(limit)
        late, soonest = self.roster.late(limit, time.monotonic())
        why = f"its handler has not answered for {limit:g} s"
        lost = [worker for worker, since in late if self._abandon(worker, since, why, error)]
        if lost:  # only now that all of them are counted: they may be too many
            self.staffing.replace(len(lost))
        return soonest

    def close(self) -> None:
        """Stop all workers, each after the batch that it runs."""
        with self._lock:
            self.staffing.end()
            self._dismiss(self.roster.all())

    # --- starting ---

    def _worker(self, index: int) -> Worker:
        bounds = self.staffing
        usual = bounds.minimum if self._courtesy is None else bounds.maximum
        at_work = self._at_work if self._courtesy is None else lambda: usual
        return self._kind(
            self.lane,
            load=self._load,
            changed=self._changed,
            ran=self._batch_ran,
            threads=CallThreads(self.lane.label, usual, at_work, self._crowded),
            index=index,
            response_timeout=self._limits.response_timeout,
            courtesy=self._courtesy,
            may_stop=self._may_stop,
        )

    def _at_work(self) -> int:
        return sum(worker.busy_since() is not None for worker in self.roster.all())

    def _overdue(self, worker: Worker) -> None:
        since = worker.busy_since()
        if since is not None and worker.state is WorkerState.LOADING:
            why = f"not ready within startupTimeout, {self._limits.startup_timeout:g} s"
            self.staffing.reason = why
            self._abandon(worker, since, why, NotReady(why))

    def _batch_ran(self, ran: BatchRan) -> None:
        self.staffing.steady()
        self._ran(ran)

    def _resize_lane(self) -> None:
        if self._courtesy is None:
            self.lane.resize(self.roster.ready)

    # --- stopping ---

    def _may_stop(self, worker: Worker) -> bool:
        """Let an idle worker stop, unless that would leave fewer than the minimum ready.

        It leaves the count at once, so that several that ask together do not all stop.
        """
        with self._lock:
            if not worker.leaving and self.roster.ready <= self.staffing.minimum:
                return False
            worker.leaving = True
            return True

    def _dismiss(
        self, workers: Iterable[Worker], how: Callable[[Worker], None] = Worker.stop
    ) -> None:
        for worker in workers:
            worker.leaving = True
            how(worker)

    def _changed(self, worker: Worker, error: BaseException | None) -> None:
        if worker.state is WorkerState.HUNG:
            self.roster.came_back(worker)
            log.info("%s: worker %d is no longer hung", self.lane.label, worker.number)
            self._changed_hook(worker)
            self.staffing.replace(self.staffing.maximum)  # none was replaced while too many hung
            return
        with self._lock:
            started = self.staffing.ended(worker)
            if worker.state is WorkerState.READY:
                self.staffing.ready()
            else:
                self.roster.remove(worker)
            self._resize_lane()
        self._changed_hook(worker)
        if error is not None:
            self._failed(worker, started, error)
            return
        if started is not None:
            started.set_result(worker)
        if worker.state is WorkerState.STOPPED:
            self.staffing.replace()

    def _failed(self, worker: Worker, started: Future[Worker] | None, error: BaseException) -> None:
        reason = error if isinstance(error, ServingError) else LoadFailed(brief(error))
        cause = error.__cause__ if reason is error else error
        with suppress(Exception):  # as `Worker` does: whoever waits for the start is told
            log.error(
                "%s: worker %d failed: %s",
                self.lane.label,
                worker.number,
                reason.message,
                # With the paths, which clients are not told; once, not with each further try.
                exc_info=cause if reason.message != self.staffing.reason else None,
            )
        self.staffing.reason = reason.message
        if started is not None:
            self._fail_start(started, reason)
            return
        if time.monotonic() - worker.ready_at > STEADY_SECONDS:
            self.staffing.steady()
        self.staffing.replace()

    def _abandon(self, worker: Worker, since: float, why: str, error: ServingError) -> bool:
        """Give up a worker; False if its call or load has ended meanwhile."""
        place = place_of(worker.thread)
        with self._lock:
            batch = self.roster.give_up(worker, since)
            if batch is None:
                return False
            started = self.staffing.ended(worker)
            self._resize_lane()
        if self._courtesy is not None:
            self._courtesy.give_up_turn()
        self._changed_hook(worker)
        log.error(
            "%s: worker %d is hung: %s; it is at %s; requests that fail: %s",
            self.lane.label,
            worker.number,
            why,
            place,
            ", ".join(ticket.request.id[:LONGEST_ID] for ticket in batch) or "none",
        )
        if self.roster.too_many_hang:
            log.error(
                "%s: %d handler threads are hung, no more workers are started",
                self.lane.label,
                self.roster.hung,
            )
        deliver([(ticket, error) for ticket in batch])
        if started is not None:
            self._fail_start(started, error)
        return True

    def _fail_start(self, started: Future[Worker], error: ServingError) -> None:
        self.staffing.refuse_if_empty()  # the next try may be minutes away
        started.set_exception(error)
