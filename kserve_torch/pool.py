"""The workers of one queue: as many as asked for, replaced when they die or hang.

A worker that dies is replaced after a growing pause (CONTRACT B4), until that has failed for
``max_retry_timeout``. One that hangs is given up at once: Python cannot stop a thread, so it is
counted, its requests are answered and a fresh worker takes its place (DESIGN law 3).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kserve_torch.batcher import Lane, deliver
from kserve_torch.courtesy import Courtesy
from kserve_torch.errors import DeadlineExceeded, LoadFailed, ServingError
from kserve_torch.machine import cores
from kserve_torch.tuner import Tuner
from kserve_torch.worker import Ran, Worker, WorkerState

if TYPE_CHECKING:
    from kserve_torch.instance import Instance

log = logging.getLogger(__name__)

#: Seconds before the n-th replacement in a row; the last one repeats.
BACK_OFF = (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55)
#: Threads that may hang before the model is given up and liveness fails.
HUNG_LIMIT = 4
#: Seconds without work after which a worker above the minimum goes home.
IDLE_SECONDS = 60.0
#: Seconds that the oldest request has waited when another worker is worth its start.
PRESSURE_SECONDS = 0.05
#: Seconds from the beginning of a batch for which its pool counts as busy.
BUSY_SECONDS = 0.1

_numbers = itertools.count(9000)


class Pool:
    """Keeps between ``minimum`` and ``maximum`` workers on a lane.

    Args:
        lane: the queue.
        load: makes the n-th instance, on its worker's thread.
        ran: told on the event loop of every batch that ran.
        changed: told of every change of a worker, on any thread.
        retry_limit: seconds for which a failing start is tried again.
        response_limit: seconds for which a failing batch is run again in parts.
        courtesy: how workers in the background give way to others; they share the cores as if all
            of them were there. None for those in the foreground.
    """

    def __init__(
        self,
        lane: Lane,
        load: Callable[[int], Instance],
        ran: Callable[[Ran], None],
        changed: Callable[[Worker], None],
        retry_limit: float,
        response_limit: float = math.inf,
        courtesy: Courtesy | None = None,
    ) -> None:
        self.lane = lane
        self.minimum = 0
        self.maximum = 0
        self.hung = 0
        self.given_up = False
        self.reason = ""
        self._load = load
        self._ran = ran
        self._changed_hook = changed
        self._retry_limit = retry_limit
        self._response_limit = response_limit
        #: Seconds that a request may wait, beyond the window, until another worker is started. What
        #: runs in the background is not worth a queue: it is long, and takes what is left over.
        self.patience = PRESSURE_SECONDS if courtesy is None else 0.0
        self._courtesy = courtesy
        self._lock = threading.RLock()
        #: Those that stay, and those that go home after the batch that they run.
        self._workers: dict[int, Worker] = {}
        self._leaving: dict[int, Worker] = {}
        self._starting: dict[int, Future[Worker]] = {}
        self._failures = 0
        self._failing_since = 0.0
        self._timer: threading.Timer | None = None
        self._closed = False

    # --- what others ask of it ---

    def workers(self) -> list[Worker]:
        """The workers that are there, also those on their way out; none that hang."""
        with self._lock:
            return [*self._workers.values(), *self._leaving.values()]

    @property
    def size(self) -> int:
        """How many workers there are, ready or not, without those on their way out."""
        return len(self._workers)

    @property
    def ready(self) -> int:
        """Workers that can take a batch, and another one after it."""
        with self._lock:
            return sum(worker.state is WorkerState.READY for worker in self._workers.values())

    def states(self) -> list[str]:
        """The state of each worker that stays."""
        with self._lock:
            return [worker.state.value for worker in self._workers.values()]

    @property
    def running(self) -> int:
        """Requests in batches that run now."""
        return sum(worker.running for worker in self.workers())

    @property
    def busy(self) -> bool:
        """Whether a batch runs, or was begun a moment ago."""
        began = self.lane.last_batch
        return bool(self.running) or time.monotonic() - began < BUSY_SECONDS

    @property
    def worn_out(self) -> bool:
        """Too many threads hang: only a new process helps."""
        return self.hung >= HUNG_LIMIT

    async def scale(self, minimum: int, maximum: int) -> None:
        """Bring the number of workers into the bounds and wait until they are ready.

        Raises:
            LoadFailed: a worker could not be started.
        """
        with self._lock:
            self.minimum, self.maximum = minimum, maximum
            surplus = list(self._workers.values())[maximum:]
            for worker in surplus:
                self._leave(worker)
            missing = minimum - len(self._workers)
        for worker in surplus:
            worker.stop()
        if missing > 0:
            # The first instance holds the weights that the others are tied to.
            await asyncio.wrap_future(self._spawn())
            await asyncio.gather(*(asyncio.wrap_future(self._spawn()) for _ in range(missing - 1)))

    def relieve(self) -> None:
        """Start one more worker if requests wait too long and the maximum allows it."""
        with self._lock:
            if self._closed or self._starting or len(self._workers) >= self.maximum:
                return
            started = self._spawn()
        started.add_done_callback(lambda done: self._give_up() if done.exception() else None)

    def give_up_hung(self, limit: float) -> float | None:
        """Abandon workers whose handler call runs for ``limit`` seconds or more.

        Returns:
            Seconds until the next call could pass the limit, None if none runs.
        """
        now = time.monotonic()
        soonest: float | None = None
        for worker in self.workers():
            since = worker.busy_since()
            if since is None:
                continue
            left = since + limit - now
            if left <= 0:
                self._abandon(worker, since, limit)
            else:
                soonest = left if soonest is None else min(soonest, left)
        return soonest

    def close(self) -> None:
        """Send all workers home after the batch that they run."""
        with self._lock:
            self._closed = True
            self.minimum = self.maximum = 0
            if self._timer is not None:
                self._timer.cancel()
        for worker in self.workers():
            self._leave(worker)
            worker.stop()

    async def join(self, seconds: float) -> bool:
        """Wait until the threads have ended; False if some still run after ``seconds``."""
        ends = time.monotonic() + seconds
        for worker in self.workers():
            await asyncio.to_thread(worker.thread.join, max(0.0, ends - time.monotonic()))
        return not any(worker.thread.is_alive() for worker in self.workers())

    # --- births and deaths ---

    def _spawn(self) -> Future[Worker]:
        with self._lock:
            index = len(self._workers)
            sharers = self.minimum if self._courtesy is None else self.maximum
            number = next(_numbers)
            started: Future[Worker] = Future()
            worker = Worker(
                number,
                self.lane,
                load=lambda: self._load(index),
                changed=self._changed,
                ran=self._ran,
                tuner=Tuner(thread_counts(sharers)),
                retry_seconds=self._response_limit,
                courtesy=self._courtesy,
                idle_seconds=IDLE_SECONDS,
                may_go=self._may_go,
            )
            self._workers[number] = worker
            self._starting[number] = started
        worker.start()
        return started

    def _may_go(self, worker: Worker) -> bool:
        """Let an idle worker go home, unless that would leave too few that can take a batch.

        It is taken off the count at once: of several that ask together, each counts the others.
        """
        with self._lock:
            if worker.number in self._workers and self.ready <= self.minimum:
                return False
            self._leave(worker)
            return True

    def _leave(self, worker: Worker) -> None:
        with self._lock:
            if self._workers.pop(worker.number, None) is not None:
                self._leaving[worker.number] = worker

    def _remove(self, worker: Worker) -> None:
        self._workers.pop(worker.number, None)
        self._leaving.pop(worker.number, None)

    def _changed(self, worker: Worker, error: BaseException | None) -> None:
        if worker.state is WorkerState.HUNG:
            self._came_back(worker)
            return
        with self._lock:
            started = self._starting.pop(worker.number, None)
            if worker.state is WorkerState.READY:
                self._failures = 0
                self.reason = ""
            else:
                self._remove(worker)
        self._changed_hook(worker)
        if error is not None:
            self._failed(worker, started, error)
        elif started is not None and started.set_running_or_notify_cancel():
            started.set_result(worker)
        if worker.state is WorkerState.STOPPED:
            self._replace()

    def _failed(self, worker: Worker, started: Future[Worker] | None, error: BaseException) -> None:
        reason = error if isinstance(error, ServingError) else LoadFailed(_short(error))
        self.reason = reason.message
        log.error("%s: worker %d failed: %s", self.lane.label, worker.number, reason.message)
        if reason.__cause__ is not None or reason is not error:
            log.debug("%s: worker %d", self.lane.label, worker.number, exc_info=error)
        if started is None:
            self._replace()
        elif started.set_running_or_notify_cancel():
            started.set_exception(reason)

    def _replace(self) -> None:
        """Start a fresh worker in place of a lost one, after the pause that is due."""
        with self._lock:
            if self._closed or len(self._workers) >= self._fewest():
                return
            now = time.monotonic()
            if self._failures == 0:
                self._failing_since = now
            elif now - self._failing_since > self._retry_limit:
                log.error("%s: giving up on starting workers: %s", self.lane.label, self.reason)
                self.given_up = True
                self._give_up()
                return
            pause = BACK_OFF[min(self._failures, len(BACK_OFF) - 1)]
            self._failures += 1
            self._timer = threading.Timer(pause, self._respawn)
            self._timer.daemon = True
            self._timer.start()

    def _fewest(self) -> int:
        """Workers that there must be now: one at least for requests that wait."""
        return min(max(self.minimum, int(self.lane.waiting > 0)), self.maximum)

    def _respawn(self) -> None:
        with self._lock:
            if self._closed or len(self._workers) >= self._fewest():
                return
            started = self._spawn()
        started.add_done_callback(lambda done: self._replace() if done.exception() else None)

    def _give_up(self) -> None:
        """Answer what waits for a worker that will not come."""
        if not self.workers():
            error = LoadFailed(f"{self.lane.label}: no worker could be started: {self.reason}")
            deliver([(ticket, error) for ticket in self.lane.flush()])

    def _abandon(self, worker: Worker, since: float, limit: float) -> None:
        batch = worker.abandon(since)
        if batch is None:
            return
        with self._lock:
            self._remove(worker)
            self.hung += 1
        self._changed_hook(worker)
        log.error(
            "%s: worker %d hangs: its handler has not answered for %g s, %d requests get an error",
            self.lane.label,
            worker.number,
            limit,
            len(batch),
        )
        late = DeadlineExceeded(f"the handler did not answer within {limit:g} s (responseTimeout)")
        deliver([(ticket, late) for ticket in batch])
        if not self.worn_out:
            self._replace()

    def _came_back(self, worker: Worker) -> None:
        """Note that a thread which hung has ended after all."""
        with self._lock:
            unplaced = self.worn_out
            self.hung -= 1
        log.info("%s: worker %d hangs no longer", self.lane.label, worker.number)
        if unplaced:
            self._replace()


def thread_counts(workers: int) -> tuple[int, ...]:
    """Thread counts worth a try: one, and the cores we may use shared out over ``workers``."""
    share = cores() // max(workers, 1)
    return (1, share) if share > 1 else (1,)


def _short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
