"""The requests of one model version, from entering a queue to their answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from kserve_torch.engine.pacing import Pacing
from kserve_torch.engine.pool import Pool
from kserve_torch.engine.queues import Queues
from kserve_torch.engine.ticket import Ticket
from kserve_torch.errors import DeadlineExceeded, Overloaded, ServingError
from kserve_torch.events import Event, Finished, Shed
from kserve_torch.messages import NO_TIME, Reply, Request, Timing


class Intake:
    """Queues requests, waits for their answers and enforces their deadlines.

    Args:
        client_timeout: seconds after which any request expires; None for no such limit.
        emit: takes every event, with the model's name and version.
        tickets: whether no request is to wait for a worker (``useJobTicket``).
    """

    def __init__(
        self,
        model: str,
        version: str,
        queues: Queues,
        client_timeout: float | None,
        emit: Callable[[Event], None],
        tickets: bool,
    ) -> None:
        self._model = model
        self._version = version
        self._queues = queues
        self._client_timeout = client_timeout
        self._emit = emit
        self._tickets = tickets
        self._pacing = Pacing()
        self._drained: asyncio.Future[None] | None = None

    async def drain(self) -> None:
        """Wait until every request is answered."""
        if self._queues.inflight:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    async def submit(self, request: Request) -> Reply:
        """Queue a request and wait for its answer; cancelling the wait withdraws the request.

        Where its time went is in the reply's ``timing``, or in that of the exception.

        Raises:
            Overloaded: the queue is full, or no worker is free and it may not wait for one.
            NotReady: it was closed.
            DeadlineExceeded: the request's deadline or ``responseTimeout`` passed.
            HandlerError: the handler failed it.
        """
        pool = self._queues.of(request.verb)
        try:
            ticket = self._enqueue(pool, request)
        except Overloaded:
            self._shed("queue_full")
            await asyncio.sleep(self._pacing.wait(time.monotonic()))
            raise
        timer = self._expire_later(pool, ticket)
        pool.inflight += 1
        error: str | None = None
        reply: Reply | None = None
        try:
            reply = await ticket.future
            return reply
        except asyncio.CancelledError as gone:
            error = "Cancelled"
            gone.timing = ticket.timing(time.monotonic())  # type: ignore[attr-defined]
            if pool.lane.withdraw(ticket):
                self._shed("disconnected")
            raise
        except ServingError as failure:
            error = type(failure).__name__
            # The requests of a batch may share this error: each is reported before the next one
            # enters its own time.
            failure.timing = ticket.timing(time.monotonic())
            raise
        finally:
            if timer is not None:
                timer.cancel()
            pool.inflight -= 1
            self._finish(request, reply.timing if reply is not None else NO_TIME, error)
            if pool.lane.pressure() > pool.patience:  # after a burst no arrival would notice it
                pool.staffing.relieve()

    def _enqueue(self, pool: Pool, request: Request) -> Ticket:
        if self._tickets and self._queues.inflight >= self._queues.predict.roster.ready:
            pool.staffing.relieve()
            raise Overloaded(
                f"{pool.lane.label}: no worker is free, and with useJobTicket no request waits"
            )
        ticket = pool.lane.submit(request)
        if pool.is_short(ticket):
            pool.staffing.relieve()
        return ticket

    def _finish(self, request: Request, timing: Timing, error: str | None) -> None:
        if self._drained is not None and not self._queues.inflight:
            self._drained.set_result(None)
            self._drained = None
        model, version = self._model, self._version
        self._emit(Finished(model, version, timing, error, request.asked, request.verb))

    def _expire_later(self, pool: Pool, ticket: Ticket) -> asyncio.TimerHandle | None:
        deadline = ticket.request.deadline
        if self._client_timeout is not None:
            latest = ticket.arrived + self._client_timeout
            deadline = latest if deadline is None else min(deadline, latest)
        if deadline is None:
            return None
        left = max(0.0, deadline - time.monotonic())
        return ticket.loop.call_later(left, self._expire, pool, ticket)

    def _expire(self, pool: Pool, ticket: Ticket) -> None:
        where = "while it ran"
        if pool.lane.withdraw(ticket):
            where = "while it waited in the queue"
            self._shed("deadline")
        ticket.settle(DeadlineExceeded(f"the request's deadline passed {where}"))

    def _shed(self, reason: str) -> None:
        self._emit(Shed(self._model, self._version, reason))
