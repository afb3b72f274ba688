"""One handler instance on one thread: load, then take a batch, run it, answer it, until told to go.

A batch that fails is run again in halves until only the guilty request is left (poison isolation);
one that does not fit into memory makes the batches of its lane smaller.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from kserve_torch.batcher import Lane, Outcome, Ticket, deliver
from kserve_torch.courtesy import Courtesy
from kserve_torch.errors import ClientError, HandlerError, OutOfMemory, ServingError
from kserve_torch.instance import RequestFault
from kserve_torch.messages import Reply, Request, Timing
from kserve_torch.tuner import Tuner

if TYPE_CHECKING:
    from kserve_torch.instance import Instance

log = logging.getLogger(__name__)

Run = Callable[[Sequence[Request]], list[Reply]]


class WorkerState(StrEnum):
    """A worker's life: LOADING, READY, then one of the last three."""

    LOADING = "LOADING"
    READY = "READY"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    HUNG = "HUNG"


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch that a worker ran: its tickets' outcomes, rows and seconds."""

    outcomes: Sequence[tuple[Ticket, Outcome]]
    rows: int
    seconds: float


class Worker:
    """A handler instance and its thread.

    Args:
        number: unique within the process, as TorchServe numbers them from 9000 on.
        lane: where its batches come from.
        load: makes the instance, on the worker's thread.
        changed: told of every change of state, on the worker's thread, with the reason if FAILED;
            also when the thread of one that was HUNG has ended.
        ran: told on the event loop after the answers of a batch went out.
        tuner: finds the number of threads that the model's operators use.
        courtesy: how it gives way to others; None for one that does not.
        idle_seconds: after so long without work it asks whether it may go home.
        may_go: answers that; from True on it is no longer counted on.
    """

    def __init__(
        self,
        number: int,
        lane: Lane,
        load: Callable[[], Instance],
        changed: Callable[[Worker, BaseException | None], None],
        ran: Callable[[Ran], None],
        tuner: Tuner,
        courtesy: Courtesy | None = None,
        idle_seconds: float | None = None,
        may_go: Callable[[Worker], bool] = lambda worker: False,
    ) -> None:
        self.number = number
        self.lane = lane
        self.state = WorkerState.LOADING
        self.started = datetime.now(UTC)
        self.instance: Instance | None = None
        self.load_seconds = 0.0
        self._load = load
        self._changed = changed
        self._ran = ran
        self._tuner = tuner
        self._courtesy = courtesy
        self._idle_seconds = idle_seconds
        self._may_go = may_go
        self._going = threading.Event()
        self._batch: Sequence[Ticket] = ()
        self._batch_since = 0.0
        self.thread = threading.Thread(
            target=self._main, name=f"{lane.label} worker {number}", daemon=True
        )

    def start(self) -> None:
        """Start the thread; it loads the instance first."""
        self.thread.start()

    def stop(self) -> None:
        """Go home after the batch that is running, if any."""
        self._going.set()
        self.lane.rouse()

    def busy_since(self) -> float | None:
        """``time.monotonic()`` at which the running handler call began, or None."""
        return self._batch_since if self._batch else None

    @property
    def running(self) -> int:
        """Requests that are in the running batch."""
        return len(self._batch)

    def abandon(self) -> Sequence[Ticket]:
        """Give up a hung worker; returns the tickets that somebody else must answer."""
        self.state = WorkerState.HUNG
        self._going.set()
        batch, self._batch = self._batch, ()
        return batch

    # --- the worker's thread ---

    def _main(self) -> None:
        started = time.monotonic()
        try:
            if self._courtesy is not None:
                self._courtesy.step_back()
            self.instance = self._load()
        except BaseException as error:
            self._become(WorkerState.FAILED, error)
            return
        self.load_seconds = time.monotonic() - started
        self._become(WorkerState.READY)
        try:
            self._work()
        except BaseException as error:
            log.exception("%s: worker %d died", self.lane.label, self.number)
            lost = HandlerError(f"{self.lane.label}: the worker died while it ran the request")
            deliver([(ticket, lost) for ticket in self._batch])
            self._become(WorkerState.FAILED, error)
        else:
            self._become(WorkerState.STOPPED)
        finally:
            self.instance.close()

    def _work(self) -> None:
        while True:
            batch = self.lane.take(self._going, self._idle_seconds)
            if batch:
                with self._courtesy.turn() if self._courtesy is not None else nullcontext():
                    self._serve(batch)
            elif self._going.is_set() or self.lane.closed or self._may_go(self):
                return

    def _become(self, state: WorkerState, error: BaseException | None = None) -> None:
        if self.state is WorkerState.HUNG:
            error = None  # its requests were answered and its place was taken long ago
        else:
            self.state = state
        self._changed(self, error)

    def _serve(self, batch: Sequence[Ticket]) -> None:
        assert self.instance is not None
        began = self._batch_since = time.monotonic()
        self._batch = batch
        outcomes = list(isolate(self._call, batch, self.lane))
        if self.state is WorkerState.HUNG:
            return
        rows = sum(len(ticket.request.rows) for ticket in batch)
        ended = time.monotonic()
        timed = [
            (ticket, _timed(ticket, outcome, began, ended, rows)) for ticket, outcome in outcomes
        ]
        ran = Ran(timed, rows, ended - began)
        deliver(timed, after=lambda: self._ran(ran))
        self._batch = ()

    def _call(self, requests: Sequence[Request]) -> list[Reply]:
        assert self.instance is not None
        rows = sum(len(request.rows) for request in requests)
        self.instance.use_threads(self._tuner.next(rows))
        self._batch_since = began = time.monotonic()
        replies = self.instance.run(requests)
        settled = self._tuner.note(rows, time.monotonic() - began)
        if settled is not None:
            log.info(
                "%s: operators use %d threads for batches like the last, of %d rows: %.3g ms a row",
                self.lane.label,
                settled.next(),
                rows,
                1000 * settled.cost(settled.next()),
            )
        return replies


def _timed(ticket: Ticket, outcome: Outcome, began: float, ended: float, rows: int) -> Outcome:
    if isinstance(outcome, ServingError):
        return outcome
    timing = Timing(queued=began - ticket.arrived, handler=ended - began, batch_rows=rows)
    return Reply(model=outcome.model, version=outcome.version, rows=outcome.rows, timing=timing)


def isolate(run: Run, batch: Sequence[Ticket], lane: Lane) -> Iterator[tuple[Ticket, Outcome]]:
    """Run a batch so that no request is harmed by another; yields an outcome per ticket.

    A request that streams is not run again: its client has seen part of the answer.
    """
    if not batch:
        return
    try:
        replies = run([ticket.request for ticket in batch])
    except RequestFault as fault:
        yield batch[fault.index], fault.error
        yield from isolate(run, [*batch[: fault.index], *batch[fault.index + 1 :]], lane)
    except ServingError as error:
        if len(batch) == 1 or any(ticket.request.emit for ticket in batch):
            _log(lane, batch, error)
            yield from ((ticket, error) for ticket in batch)
            return
        middle = len(batch) // 2
        halves = [*isolate(run, batch[:middle], lane), *isolate(run, batch[middle:], lane)]
        # One request that fits nowhere says nothing about batches of others.
        alone = any(isinstance(outcome, OutOfMemory) for _, outcome in halves)
        if isinstance(error, OutOfMemory) and not alone:
            _shrink(lane, batch)
        yield from halves
    else:
        yield from zip(batch, replies, strict=True)


def _shrink(lane: Lane, batch: Sequence[Ticket]) -> None:
    rows = sum(len(ticket.request.rows) for ticket in batch)
    lane.limit_rows(rows // 2)
    log.warning(
        "%s: out of memory with %d rows, batches have at most %d from now on",
        lane.label,
        rows,
        lane.max_rows,
    )


def _log(lane: Lane, batch: Sequence[Ticket], error: ServingError) -> None:
    ids = ", ".join(ticket.request.id for ticket in batch)
    if isinstance(error, ClientError):  # who sends nonsense must not fill the log with tracebacks
        log.info("%s: request %s was refused: %s", lane.label, ids, error.message)
        return
    log.error("%s: request %s failed: %s", lane.label, ids, error.message, exc_info=error.__cause__)
