"""A worker whose handler is asynchronous: it runs many requests at once (CONTRACT H4).

Each request is a task on the worker's event loop. One whose client leaves is cancelled, and so is
one that takes longer than ``responseTimeout``, or as long from one part of a stream to the next. A
handler that blocks the loop makes the worker hang, with all its requests.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from kserve_torch.engine.failures import log_failed
from kserve_torch.engine.ticket import Outcome, Ticket, deliver
from kserve_torch.engine.worker import Worker, WorkerState, too_slow
from kserve_torch.errors import ClientLeft, DeviceLost, HandlerError, ServingError
from kserve_torch.events import BatchRan
from kserve_torch.messages import Reply
from kserve_torch.runtime.fault import RequestFault
from kserve_torch.runtime.reasons import forget_tracebacks, handler_failure

#: Requests that run at once; further ones wait in the queue.
MOST_CALLS = 256
#: Seconds in which a request ends after it is cancelled, unless the event loop is blocked.
GRACE = 1.0


class ConcurrentWorker(Worker):
    """Runs many requests at once if its handler is asynchronous, else one batch after the other."""

    def _work(self) -> None:
        assert self.instance is not None
        if not self.instance.concurrent:
            super()._work()
            return
        #: When each running request began, or last sent a part; the oldest first.
        self._began: dict[Ticket, float] = {}
        self._lost: DeviceLost | None = None
        with ThreadPoolExecutor(1, f"{self.thread.name} queue") as taker:
            try:
                self.instance.host(self._serve_all(taker))
            finally:  # a handler may have stopped the event loop
                self.stop()
        if self._lost is not None:
            raise self._lost

    async def _serve_all(self, taker: ThreadPoolExecutor) -> None:
        running: set[asyncio.Task[None]] = set()

        def ended(call: asyncio.Task[None]) -> None:
            running.discard(call)
            if not running:
                self.lane.rouse()  # from now on the worker is idle

        loop = asyncio.get_running_loop()
        while True:
            take = functools.partial(self._take, lambda: None if running else self._idle_seconds)
            batch = await loop.run_in_executor(taker, take)
            for ticket in batch:
                call = loop.create_task(self._answer(ticket))
                running.add(call)
                call.add_done_callback(ended)
            if not batch and (self._stopping.is_set() or self.lane.closed or self._may_stop(self)):
                break
            if len(running) >= MOST_CALLS:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if running:
            await asyncio.wait(running)

    def _take(self, idle_limit: Callable[[], float | None]) -> Sequence[Ticket]:
        """Wait for a batch, whose requests run from now on; on a thread of its own."""
        batch = self.lane.take(self._stopping, idle_limit)
        with self._lock:
            if self.state is not WorkerState.HUNG:
                self._began.update(dict.fromkeys(batch, time.monotonic()))
                self._note()
                return batch
        lost = HandlerError(f"{self.lane.label}: the worker hung when it took the request")
        deliver([(ticket, lost) for ticket in batch])
        return ()

    def _note(self) -> None:
        self._batch = tuple(self._began)
        self._since = next(iter(self._began.values())) + GRACE if self._began else None

    async def _answer(self, ticket: Ticket) -> None:
        ticket.began = time.monotonic()
        rows = ticket.rows = len(ticket.request.rows)
        _end_with(ticket)
        outcome = await self._outcome(ticket)
        with self._lock:
            if self.state is WorkerState.HUNG:
                return
            del self._began[ticket]
            self._note()
        after = functools.partial(self._ran, BatchRan(self.lane.model, self.lane.version, rows, 1))
        deliver([(ticket, ticket.timed(outcome, time.monotonic()))], after)

    async def _outcome(self, ticket: Ticket) -> Outcome:
        assert self.instance is not None
        request, limit = ticket.request, self._response_timeout
        loop = asyncio.get_running_loop()
        # Since it was taken: another request may have blocked the loop, and with more time than
        # `_note` gives it, it would make the worker hang.
        left = self._began[ticket] + limit - time.monotonic()
        error: ServingError
        try:
            async with asyncio.timeout(left) as timeout:
                on_part = functools.partial(self._goes_on, ticket, timeout, loop)
                return await self.instance.answer(request, on_part)
        except TimeoutError:
            error = too_slow(limit)
        except asyncio.CancelledError:
            return ClientLeft("its call was cancelled")
        except RequestFault as fault:
            error = fault.error
        except Exception as failure:
            error = handler_failure(failure)
        if isinstance(error, DeviceLost):
            self._lost = error
            self.stop()
        log_failed(self.lane.label, request, error, error.__cause__)
        forget_tracebacks(error)
        return error

    def _goes_on(
        self, ticket: Ticket, timeout: asyncio.Timeout, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Note that a request has sent a part; on any thread."""
        with self._lock:
            if self._began.pop(ticket, None) is None:
                return
            self._began[ticket] = time.monotonic()
            self._note()
        loop.call_soon_threadsafe(_prolong, timeout, loop.time() + self._response_timeout)


def _prolong(timeout: asyncio.Timeout, when: float) -> None:
    with suppress(RuntimeError):  # the call has ended meanwhile
        timeout.reschedule(when)


def _end_with(ticket: Ticket) -> None:
    """Cancel the running task once the request's client has left or waits no longer."""
    call, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert call is not None

    def settled(future: asyncio.Future[Reply]) -> None:
        # If the call itself has failed, its task has ended, and cancelling does nothing.
        if future.cancelled() or future.exception() is not None:
            with suppress(RuntimeError):  # the worker has ended meanwhile
                loop.call_soon_threadsafe(call.cancel)

    with suppress(RuntimeError):  # the client's event loop has ended
        ticket.loop.call_soon_threadsafe(ticket.future.add_done_callback, settled)
