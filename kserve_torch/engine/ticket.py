"""A request on its way through the engine, and the delivery of its answer to whoever waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from kserve_torch.errors import ServingError
from kserve_torch.messages import Reply, Request, Timing

log = logging.getLogger(__name__)

Outcome = Reply | ServingError


class Ticket:
    """One request in the queue, and the future of its answer."""

    __slots__ = ("arrived", "began", "future", "loop", "pressure", "request", "rows")

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop, arrived: float) -> None:
        self.request = request
        self.loop = loop
        self.arrived = arrived
        #: `Lane.pressure` when it arrived.
        self.pressure = 0.0
        #: ``time.monotonic()`` at which it left the queue for the handler, 0.0 before, and the
        #: rows of its batch.
        self.began, self.rows = 0.0, 0
        self.future: asyncio.Future[Reply] = loop.create_future()

    def timing(self, ended: float) -> Timing:
        """Where its time went until ``ended``, a ``time.monotonic()``."""
        left = self.began or ended
        return Timing(
            queued=left - self.arrived,
            handler=ended - left,
            batch_rows=self.rows,
            began=self.began,
        )

    def timed(self, outcome: Outcome, ended: float) -> Outcome:
        """The outcome, with its time until ``ended`` if it is a reply."""
        if isinstance(outcome, ServingError):
            return outcome
        return Reply(
            model=outcome.model,
            version=outcome.version,
            rows=outcome.rows,
            timing=self.timing(ended),
        )

    def settle(self, outcome: Outcome) -> None:
        """Answer the caller if it is still waiting; on the loop only (DESIGN law 1)."""
        if self.future.done():
            return
        if isinstance(outcome, ServingError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


def deliver(
    outcomes: Iterable[tuple[Ticket, Outcome]], after: Callable[[], None] | None = None
) -> None:
    """Answer tickets from any thread, with one wake-up per event loop.

    Args:
        outcomes: each ticket with its answer or error.
        after: called once, on a loop, after the tasks that waited for the answers have resumed.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Outcome]]] = {}
    for ticket, outcome in outcomes:
        by_loop.setdefault(ticket.loop, []).append((ticket, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled, after)
        except RuntimeError:
            log.info("%d answers came after their event loop had ended", len(settled))
        else:
            after = None


def _settle(settled: Sequence[tuple[Ticket, Outcome]], after: Callable[[], None] | None) -> None:
    for ticket, outcome in settled:
        ticket.settle(outcome)
    if after is not None:  # behind the waiting tasks, which settling has scheduled
        asyncio.get_running_loop().call_soon(after)
