"""One queue between the event loop and the workers of one model version and verb.

The loop submits and withdraws requests; workers take whole batches. A batch is formed when a worker
is free, under the lock, so a request that has left the queue by then cannot shift its neighbours.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable

from kserve_torch.engine.gate import Gate
from kserve_torch.engine.patience import Patience
from kserve_torch.engine.ticket import Ticket
from kserve_torch.engine.window import Window
from kserve_torch.errors import NotReady, Overloaded
from kserve_torch.messages import Request, Verb

log = logging.getLogger(__name__)

#: Seconds after which batches that had become smaller, for want of memory, grow again.
SHRUNK_SECONDS = 600.0


class Lane:
    """The queue of one model version and verb.

    Args:
        verb: what is asked; descriptions wait with predictions.
        window: forms the batches; its ``capacity`` bounds the queue.
    """

    def __init__(self, model: str, version: str, verb: Verb, window: Window[Ticket]) -> None:
        self.model = model
        self.version = version
        #: For messages.
        self.label = f"{model} {version} {verb}"
        self._window = window
        self._max_rows = window.max_rows
        self._shrunk = -math.inf
        self._lock = threading.Lock()
        self._gate = Gate()
        self._patience = Patience()
        #: What idle workers wait for, in the order in which they became idle. The last is woken
        #: first: so the others stay idle for long if they are not needed, and then stop.
        self._idle: list[threading.Condition] = []
        #: Whether it takes no more requests.
        self.closed = False
        #: ``time.monotonic()`` at which the last batch was formed.
        self.last_batch = -math.inf
        #: ``time.monotonic()`` at which it was last logged that a batch is run again in parts.
        self.last_told = -math.inf

    # --- the event loop's side ---

    def submit(self, request: Request) -> Ticket:
        """Queue a request.

        Raises:
            Overloaded: the queue is full.
            NotReady: the lane is closed.
        """
        ticket = Ticket(request, asyncio.get_running_loop(), time.monotonic())
        with self._lock:
            if self.closed:
                raise NotReady(f"{self.label} is not taking requests: it is being unloaded")
            # A description takes all the room of a batch and so goes alone (CONTRACT B1).
            alone = request.verb is Verb.DESCRIBE
            rows = self._window.max_rows if alone else len(request.rows)
            if not self._window.push(ticket, rows, ticket.arrived):
                raise Overloaded(
                    f"{self.label}: the queue is full, {self._window.capacity} requests wait"
                )
            ticket.pressure = self._pressure(ticket.arrived)
            # The first request wakes a worker, and so does the one that completes a batch; those
            # between need not.
            if self._idle and (
                len(self._window) == 1 or (self._window.is_complete and not self._gate.opens())
            ):
                self._idle.pop().notify()
        return ticket

    def withdraw(self, ticket: Ticket) -> bool:
        """Take a request out of the queue; False if a worker has taken it already."""
        with self._lock:
            return self._window.remove(ticket)

    def pressure(self) -> float:
        """Seconds that the oldest request has waited because all workers are busy.

        The delay for which even a free worker waits until a batch is complete is not counted; and
        there is none if another worker would not help.
        """
        with self._lock:
            return self._pressure(time.monotonic())

    def _pressure(self, now: float) -> float:
        window = self._window
        age = now - (window.oldest() or now)
        pressure = age if window.is_complete else max(0.0, age - window.max_delay)
        return 0.0 if pressure and self._gate.is_enough else pressure

    def oldest_age(self) -> float:
        """Seconds that the oldest request has waited, for whatever reason; 0.0 if none waits."""
        with self._lock:
            now = time.monotonic()
            return now - (self._window.oldest() or now)

    def close(self) -> list[Ticket]:
        """Take no more requests and stop the workers; returns what still waited, to be answered."""
        with self._lock:
            self.closed = True
        self.rouse()
        return self.flush()

    def flush(self) -> list[Ticket]:
        """Take out all waiting requests; the caller answers them."""
        left: list[Ticket] = []
        with self._lock:
            while batch := self._window.take():
                left.extend(batch)
        return left

    # --- the workers' side ---

    def take(
        self, stopping: threading.Event, idle_limit: Callable[[], float | None] = lambda: None
    ) -> list[Ticket]:
        """Wait for a batch; empty if the worker is to stop, or has been idle for too long.

        Args:
            stopping: set (followed by `rouse`) when this worker is to stop.
            idle_limit: seconds without work after which an empty list is returned; asked again
                whenever the worker is woken.
        """
        self._end_batch(stopping)
        woken = threading.Condition(self._lock)
        with self._lock:
            now = free_since = time.monotonic()
            idle = 0.0
            while not (self.closed or stopping.is_set()):
                opens = self._gate.opens()
                due = opens or self._window.due(now, free_since)
                if due == 0.0:
                    return self._form(stopping, idle)
                if (opens or due is None) and (limit := idle_limit()) is not None:
                    left = free_since + limit - now
                    if left <= 0:
                        break
                    due = min(left, opens or left)
                self._idle.append(woken)
                woken.wait(due if due is None else min(due, threading.TIMEOUT_MAX))
                if woken in self._idle:  # nobody woke it
                    self._idle.remove(woken)
                before, now = now, time.monotonic()
                idle += 0.0 if opens else now - before
            return []

    def _end_batch(self, worker: threading.Event) -> None:
        with self._lock:
            settled = self._gate.end(worker)
            self._window.form_for(self._gate.width)
            self._adapt_wait(worker)
        if settled is not None:
            chosen = settled.next()
            log.info(
                "%s: %d of %d workers compute at once: %.2f ms per request, with all %.2f ms",
                self.label,
                chosen,
                settled.most,
                *(1000 * settled.cost(workers) for workers in (chosen, settled.most)),
            )

    def _adapt_wait(self, worker: threading.Event) -> None:
        now, patience = time.monotonic(), self._patience
        patience.end(worker, now)
        self._window.share = patience.share(now, self._gate.width)
        self._window.pause = patience.pause

    def _form(self, worker: threading.Event, idle: float) -> list[Ticket]:
        full = self._window.is_full
        batch = self._window.take()
        self.last_batch = time.monotonic()
        if self._window.max_rows < self._max_rows:
            self._grow(self.last_batch)
        self._gate.begin(worker, len(batch), idle)
        self._patience.begin(worker, self.last_batch, full)
        if self._idle and len(self._window) and not self._gate.opens():
            self._idle.pop().notify()
        return batch

    def give_up(self, stopping: threading.Event) -> None:
        """Forget the batch of a worker that will not ask for another."""
        with self._lock:
            self._gate.give_up(stopping)
            self._patience.forget(stopping)

    def resize(self, workers: int) -> None:
        """Be told how many workers there are."""
        with self._lock:
            self._gate.resize(workers)
            self._window.form_for(self._gate.width)

    def rouse(self) -> None:
        """Wake all idle workers, so that one that is to stop sees its event."""
        with self._lock:
            while self._idle:
                self._idle.pop().notify()

    def limit_rows(self, rows: int) -> None:
        """Form batches of at most ``rows``: more do not fit into memory.

        What took the memory may have been another model, or rows of unusual size: the limit is
        doubled after each `SHRUNK_SECONDS`, until batches have their full size again.
        """
        with self._lock:
            self._window.max_rows = max(1, min(self._window.max_rows, rows))
            self._shrunk = time.monotonic()

    def _grow(self, now: float) -> None:
        if now - self._shrunk >= SHRUNK_SECONDS:
            self._window.max_rows = min(self._max_rows, 2 * self._window.max_rows)
            self._shrunk = now

    def form_batches(self, rows: int, delay: float) -> None:
        """Form batches of up to ``rows`` from now on, whose first row waits up to ``delay`` s."""
        with self._lock:
            self._max_rows = self._window.max_rows = rows
            self._window.max_delay = delay

    @property
    def waiting(self) -> int:
        """Requests that wait for a worker."""
        return len(self._window)

    @property
    def max_rows(self) -> int:
        """Most rows of a batch, at present."""
        return self._window.max_rows
