"""Poison isolation: a batch that fails is run again in parts until only the guilty request is left.

Handlers may change the rows that they are given, so each part is run with fresh ones. A batch that
does not fit into memory makes later batches of its lane smaller for some minutes. A request whose
client has part of its answer already is not run again: the client would get that part twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

from kserve_torch.engine.failures import log_failed
from kserve_torch.engine.lane import SHRUNK_SECONDS, Lane
from kserve_torch.engine.ticket import Outcome, Ticket
from kserve_torch.errors import (
    DeadlineExceeded,
    DeviceLost,
    HandlerError,
    OutOfMemory,
    ServingError,
)
from kserve_torch.frozen import frozen
from kserve_torch.messages import Reply, Request
from kserve_torch.runtime.fault import RequestFault
from kserve_torch.runtime.reasons import forget_tracebacks, handler_failure

log = logging.getLogger(__name__)

Run = Callable[[Sequence[Request]], list[Reply]]
Outcomes = list[tuple[Ticket, Outcome]]

#: Seconds between two log lines of a lane about batches that are run again.
_SAID_SECONDS = 60.0

_NO_TIME = "the batch failed, and no time was left to run this request again"


@frozen()
class _Failure:
    """Why a part failed, and the ticket whose row the handler blames, if any."""

    error: ServingError
    accused: Ticket | None = None


class Isolation:
    """Runs a batch of a lane so that no request is harmed by another.

    Args:
        may_rerun: whether there is time to run a part of it again.
    """

    def __init__(
        self, run: Run, batch: Sequence[Ticket], lane: Lane, may_rerun: Callable[[], bool]
    ) -> None:
        self._run = run
        self._batch = batch
        self._lane = lane
        self._may_rerun = may_rerun
        self._to_run: list[Sequence[Ticket]] = [batch]
        self._charges: dict[Ticket, ServingError] = {}
        #: Parts that did not fit into memory, and the tickets that did not even alone.
        self._too_large: list[Sequence[Ticket]] = []
        self._misfits: set[Ticket] = set()

    def outcomes(self) -> Iterator[Outcomes]:
        """Run the batch, and then parts of it.

        Raises:
            DeviceLost: no part of it can be run any more.

        Yields:
            The outcomes of some tickets, as soon as they are known; in the end one for each ticket.
            Tickets that are settled by others meanwhile are not run again.
        """
        while self._to_run:
            part = self._to_run.pop()
            if part is not self._batch:
                part, dropped = self._still_wanted(part)
                if dropped:
                    yield dropped
                if not part:
                    continue
            tried = self._try(part)
            if not isinstance(tried, _Failure):
                yield list(zip(part, tried, strict=True))
            elif settled := self._after(part, tried):
                yield settled
        for part in self._too_large:
            # A request that does not fit even alone says nothing about batches of others.
            if self._misfits.isdisjoint(part):
                _shrink(self._lane, part)

    def _still_wanted(self, part: Sequence[Ticket]) -> tuple[list[Ticket], Outcomes]:
        """The tickets to run again; and the outcomes of the others, with their own error if any."""
        too_late = not self._may_rerun()
        dropped = [ticket for ticket in part if too_late or ticket.future.done()]
        late = DeadlineExceeded(_NO_TIME)
        outcomes: Outcomes = [(ticket, self._charges.get(ticket, late)) for ticket in dropped]
        return [ticket for ticket in part if ticket not in dropped], outcomes

    def _try(self, part: Sequence[Ticket]) -> list[Reply] | _Failure:
        requests = [ticket.request for ticket in part]
        try:
            return self._run(
                requests if part is self._batch else [request.anew() for request in requests]
            )
        except DeviceLost:
            raise
        except RequestFault as fault:
            return _Failure(fault.error, accused=part[fault.index])
        except Exception as failure:
            return _Failure(handler_failure(failure))

    def _after(self, part: Sequence[Ticket], failure: _Failure) -> Outcomes:
        """Plan what to run next; returns the outcomes that are final."""
        error, accused = failure.error, failure.accused
        if accused is not None:
            self._charges[accused] = error
        settled, rest = _sort(part, accused, error, self._lane)
        if part is self._batch and rest:
            _say(self._lane, len(part), error)
        self._to_run += _parts(rest, accused, whole=bool(settled))
        if isinstance(error, OutOfMemory):
            self._too_large.append(part)
            self._misfits.update(ticket for ticket, _ in settled)
        forget_tracebacks(error)  # else the batch would stay in memory while the parts run
        return settled


def _parts(rest: list[Ticket], accused: Ticket | None, whole: bool) -> list[list[Ticket]]:
    """What to run next, the last part first.

    A request that is accused of a bad row is run alone before that is believed: a handler that
    works on some of the rows only may have counted wrongly.
    """
    if accused is not None:
        others = [ticket for ticket in rest if ticket is not accused]
        return [[accused] if accused in rest else [], others]
    half = len(rest) // 2
    return [rest] if whole else [rest[half:], rest[:half]]


def _sort(
    batch: Sequence[Ticket], accused: Ticket | None, error: ServingError, lane: Lane
) -> tuple[Outcomes, list[Ticket]]:
    """The tickets for which a failed call is final, with their errors; and those to run again."""
    settled: Outcomes = []
    rest: list[Ticket] = []
    for ticket in batch:
        if len(batch) == 1 or (ticket is accused and ticket.request.partly_answered):
            settled.append((ticket, error))
        elif ticket.request.partly_answered:  # the error may quote another request's data
            settled.append((ticket, HandlerError("broken off: a request of its batch failed")))
        else:
            rest.append(ticket)
    if settled:
        log_failed(lane.label, settled[0][0].request, error, error.__cause__)
    return settled, rest


def _shrink(lane: Lane, batch: Sequence[Ticket]) -> None:
    rows = sum(len(ticket.request.rows) for ticket in batch)
    lane.limit_rows(rows // 2)
    log.warning(
        "%s: out of memory with %d rows; batches have at most %d for the next %.0f minutes",
        lane.label,
        rows,
        lane.max_rows,
        SHRUNK_SECONDS / 60,
    )


def _say(lane: Lane, requests: int, error: ServingError) -> None:
    """Log that a handler may not support batches: clients only see that it is slow."""
    now = time.monotonic()
    # Errors of other classes concern one request, or memory, and are logged elsewhere.
    if type(error) is not HandlerError or now - lane.last_told < _SAID_SECONDS:
        return
    lane.last_told = now
    log.warning(
        "%s: a batch of %d requests failed and is run again in parts (see batch_splits_total): %s",
        lane.label,
        requests,
        error.message,
    )
