"""One handler instance on one thread: load, then take, run and answer batches until told to stop.

A thread that hangs cannot be stopped. Whoever gives up its worker answers its batch; what the
thread still returns later is dropped.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from kserve_torch.engine.courtesy import Courtesy
from kserve_torch.engine.isolation import Isolation
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.threads import CallThreads
from kserve_torch.engine.ticket import Ticket, deliver
from kserve_torch.errors import DeadlineExceeded, HandlerError, ServingError
from kserve_torch.events import BatchRan
from kserve_torch.messages import Reply, Request
from kserve_torch.runtime.machine import give_back_freed_memory, give_back_memory
from kserve_torch.runtime.reasons import forget_frames

if TYPE_CHECKING:
    from kserve_torch.runtime.instance import Instance

log = logging.getLogger(__name__)

#: Seconds without work after which a worker above the minimum stops.
IDLE_SECONDS = 60.0

_numbers = itertools.count(9000)


class WorkerState(StrEnum):
    """The states of a worker: LOADING, READY, then one of the last three."""

    LOADING = "LOADING"
    READY = "READY"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    HUNG = "HUNG"


class Worker:
    """A handler instance and its thread.

    Args:
        lane: where its batches come from.
        load: makes the instance, on the worker's thread, from the worker's index.
        changed: called on the worker's thread after every change of state, with the error if it is
            FAILED; also when the thread of a HUNG worker ends.
        ran: called on the event loop after the answers of a batch have gone out.
        index: its place in its pool.
        threads: sets the number of intra-op threads.
        response_timeout: seconds that a call may take; a failed batch that has taken as long is not
            run again in parts.
        courtesy: how it gives way to others; None in the foreground.
        may_stop: answers whether it may stop after `IDLE_SECONDS`; once that is True, the pool no
            longer counts the worker.

    Attributes:
        number: unique within the process; counted from 9000, as TorchServe's.
        leaving: its pool no longer counts it: it stops after the batch that it runs.
    """

    def __init__(
        self,
        lane: Lane,
        load: Callable[[int], Instance],
        changed: Callable[[Worker, BaseException | None], None],
        ran: Callable[[BatchRan], None],
        threads: CallThreads,
        index: int,
        response_timeout: float,
        courtesy: Courtesy | None,
        may_stop: Callable[[Worker], bool],
    ) -> None:
        self.number = next(_numbers)
        self.index = index
        self.lane = lane
        self.state = WorkerState.LOADING
        self.leaving = False
        self.started = datetime.now(UTC)
        self.instance: Instance | None = None
        self.load_seconds = 0.0
        #: ``time.monotonic()`` at which it became ready.
        self.ready_at = math.inf
        self._load = load
        self._changed = changed
        self._ran = ran
        self._threads = threads
        self._response_timeout = response_timeout
        self._courtesy = courtesy
        self._idle_seconds = IDLE_SECONDS
        self._may_stop = may_stop
        self._stopping = threading.Event()
        self._batch: Sequence[Ticket] = ()
        self._batch_since = 0.0
        self._calls = 0
        #: When the running load or call began, or last sent a part, or None. The lock makes sure
        #: that it either ends or is given up, and that no later call is given up in its place.
        self._since: float | None = None
        self._lock = threading.Lock()
        self.thread = threading.Thread(
            target=self._main, name=f"{lane.label} worker {self.number}", daemon=True
        )

    def start(self) -> None:
        """Start the thread; it loads the instance first."""
        self._since = time.monotonic()
        self.thread.start()

    def stop(self) -> None:
        """Stop after the running batch, if any."""
        self._stopping.set()
        self.lane.rouse()

    def finish(self) -> None:
        """Stop once no request waits."""
        self._idle_seconds = 0.0
        self.lane.rouse()

    def busy_since(self) -> float | None:
        """``time.monotonic()`` at which the running load or call began, or None.

        A call that streams begins anew with each part, as TorchServe's ``responseTimeout`` does.
        """
        return self._since

    @property
    def running(self) -> int:
        """Requests that are in the running batch."""
        return len(self._batch)

    def abandon(self, since: float) -> Sequence[Ticket] | None:
        """Give up the worker if it still hangs in the load or call that began at ``since``.

        Returns:
            The tickets that the caller must answer; None if that load or call has ended.
        """
        with self._lock:
            if self._since != since:
                return None
            self.state = WorkerState.HUNG
            self._since = None
            # Under the lock, for which a call that ends waits: else its thread could take another
            # batch before it sees that it was given up, and drop that batch's answers.
            self._stopping.set()
            batch, self._batch = self._batch, ()
        self.lane.give_up(self._stopping)
        self.lane.rouse()  # a concurrent one may wait for further requests
        return [ticket for ticket in batch if not ticket.future.done()]

    # --- the worker's thread ---

    def _main(self) -> None:
        if self._stopping.is_set():  # its model left while it waited for its turn to load
            self._become(WorkerState.STOPPED)
            return
        started = time.monotonic()
        try:
            if self._courtesy is not None:
                self._courtesy.lower_priority()
            self._threads.for_load()
            self.instance = self._load(self.index)
            self.instance.on_part = self._part_sent
            give_back_freed_memory()  # checkpoints, and weights that it has in common with others
        except BaseException as error:
            # Else its weights would still be in memory when it is loaded again, even those of
            # handlers that refer to themselves.
            forget_frames(error)
            give_back_memory()
            self._become(WorkerState.FAILED, error)
            return
        self.ready_at = time.monotonic()
        self.load_seconds = self.ready_at - started
        self._become(WorkerState.READY)
        try:
            self._work()
        except BaseException as error:
            with suppress(Exception):  # it is replaced even if there is no memory for the line
                log.exception("%s: worker %d died", self.lane.label, self.number)
            lost = HandlerError(f"{self.lane.label}: the worker died while it ran the request")
            outcome = error if isinstance(error, ServingError) else lost
            deliver([(ticket, outcome) for ticket in self._batch])
            self._become(WorkerState.FAILED, error)
        else:
            self._become(WorkerState.STOPPED)
        finally:
            self.lane.give_up(self._stopping)
            self.instance.close()
            self.instance = None
            give_back_freed_memory()

    def _work(self) -> None:
        while True:
            batch = self.lane.take(self._stopping, lambda: self._idle_seconds)
            if batch:
                self._serve_in_turn(batch)
                del batch  # else its requests and answers would stay in memory until the next one
            elif self._stopping.is_set() or self.lane.closed or self._may_stop(self):
                return

    def _become(self, state: WorkerState, error: BaseException | None = None) -> None:
        with self._lock:
            self._since = None
            if self.state is WorkerState.HUNG:  # it was given up and replaced before
                error = None
                if state is WorkerState.READY:
                    return
            else:
                self.state = state
        self._changed(self, error)

    def _serve_in_turn(self, batch: Sequence[Ticket]) -> None:
        if self._courtesy is None:
            self._serve(batch)
            return
        with self._courtesy.turn():
            # Some clients may have left while it waited.
            if batch := [ticket for ticket in batch if not ticket.future.done()]:
                self._serve(batch)

    def _serve(self, batch: Sequence[Ticket]) -> None:
        began = self._batch_since = time.monotonic()
        self._batch = batch
        self._calls = 0
        left = len(batch)
        rows = sum(len(ticket.request.rows) for ticket in batch)
        for ticket in batch:
            ticket.began, ticket.rows = began, rows
        for outcomes in Isolation(self._call, batch, self.lane, self._may_go_on).outcomes():
            if self.state is WorkerState.HUNG:
                return
            ended = time.monotonic()
            timed = [(ticket, ticket.timed(outcome, ended)) for ticket, outcome in outcomes]
            left -= len(timed)
            ran = BatchRan(self.lane.model, self.lane.version, rows, len(batch), self._calls)
            deliver(timed, after=None if left else functools.partial(self._ran, ran))
        self._batch = ()

    def _may_go_on(self) -> bool:
        """Whether parts of the batch may be run again: not when hung, or when it has taken long."""
        hung = self.state is WorkerState.HUNG
        return not hung and time.monotonic() - self._batch_since < self._response_timeout

    def _call(self, requests: Sequence[Request]) -> list[Reply]:
        assert self.instance is not None
        rows = sum(len(request.rows) for request in requests)
        self._calls += 1
        self._since = began = time.monotonic()
        self._threads.for_call(rows)
        try:
            replies = self.instance.run(requests)
        finally:
            with self._lock:
                self._since = None
        self._threads.answered(rows, time.monotonic() - began)
        return replies

    def _part_sent(self) -> None:
        with self._lock:
            # A call whose clients have all left gets no more time: it might go on for ever.
            if self._since is not None and not all(t.future.done() for t in self._batch):
                self._since = time.monotonic()


def too_slow(limit: float) -> DeadlineExceeded:
    """The answer to a request whose call takes ``limit`` seconds or more."""
    return DeadlineExceeded(f"the handler did not answer within {limit:g} s (responseTimeout)")
