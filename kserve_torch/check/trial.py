"""Tries one model's requests: each alone and twice, then several in one batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice

import httpx

from kserve_torch.check.answers import difference
from kserve_torch.check.samples import Sample
from kserve_torch.errors import ServingError
from kserve_torch.events import BatchRan, Observers
from kserve_torch.models.version import ModelVersion

#: Requests of a batch: for a model with ``batchSize`` 1, and at most for any other.
FEWEST, MOST = 4, 8
#: Seconds that a batch waits for its requests, which are sent all at once.
_TOGETHER = 5.0
_LONGEST = 200


class Verdict(StrEnum):
    """The kind of a finding; FAILED makes the check fail."""

    OK = "ok"
    NOTE = "note"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class _Answered:
    """A request with the same answer each time, and its rows."""

    sample: Sample
    body: bytes
    rows: int


class Trial:
    """Sends one model its requests.

    Args:
        version: the model's default version, ready.
        client: of the application.
        observers: to be notified of batches.
        envelope: ``service_envelope``.
    """

    def __init__(
        self,
        version: ModelVersion,
        client: httpx.AsyncClient,
        observers: Observers,
        envelope: str | None,
    ) -> None:
        self._version = version
        self._client = client
        self._envelope = envelope
        self._batch: BatchRan | None = None
        observers.add(self._ran, [BatchRan])

    def _ran(self, event: BatchRan) -> None:
        if event.model == self._version.name:
            self._batch = event

    async def findings(self, samples: Sequence[Sample]) -> AsyncIterator[Finding]:
        """Try each request, then those that were answered together."""
        answered: list[_Answered] = []
        self._version.form_batches(1, 0.0)  # single requests need not wait for others
        for sample in samples:
            yield await self._alone(sample, answered)
        if answered:
            yield await self._together(answered)

    async def _alone(self, sample: Sample, answered: list[_Answered]) -> Finding:
        self._batch = None
        name = f"{sample.name} ({sample.fault})" if sample.fault else sample.name
        first = await self._send(sample)
        if first.is_error:
            return Finding(Verdict.FAILED, f"{name}: {_why(first)}")
        began = time.monotonic()
        second = await self._send(sample)
        words = f"{name}: answered in {1000 * (time.monotonic() - began):.1f} ms"
        if differs := difference(second.content, first.content):
            why = "random numbers, or no model.eval()?"
            return Finding(Verdict.NOTE, f"{words}, differently each time: {differs} ({why})")
        if self._batch is not None:  # else it had no rows, and no handler was called
            answered.append(_Answered(sample, first.content, self._batch.rows))
        if sample.answer is None:
            return Finding(Verdict.OK, words)
        if differs := difference(first.content, sample.answer):
            return Finding(Verdict.FAILED, f"{words}, not as recorded: {differs}")
        return Finding(Verdict.OK, f"{words}, as recorded")

    async def _together(self, answered: Sequence[_Answered]) -> Finding:
        """Batches that each request is in at least once."""
        limits, most = self._version.limits, max(each.rows for each in answered)
        limit = limits.batch_size
        may_raise = limit == 1
        count = min(limits.queue_size, FEWEST if may_raise else min(MOST, limit // most))
        if not self._version.batches:
            return Finding(Verdict.NOTE, "batches not tried: the model serves requests one by one")
        if count < 2:
            return Finding(
                Verdict.NOTE,
                f"batches not tried: batchSize {limit}, jobQueueSize {limits.queue_size}, "
                f"{most} rows per request",
            )
        together = f"in batches of {count} requests"
        requests = cycle(answered)
        for _ in range(0, len(answered), count):
            batch = list(islice(requests, count))
            self._version.form_batches(sum(each.rows for each in batch), _TOGETHER)
            replies = await asyncio.gather(*(self._send(each.sample) for each in batch))
            for each, reply in zip(batch, replies, strict=True):
                differs = difference(reply.content, each.body)
                if reply.is_error or differs:
                    verdict = Verdict.NOTE if may_raise else Verdict.FAILED
                    why = _why(reply) if reply.is_error else f"{differs}: it needs batchSize 1"
                    text = f"{each.sample.name} {together}: {why}"
                    return Finding(verdict, text)
            if self._batch is None or self._batch.requests != count:
                text = f"batches not tried: no batch of {count} requests was formed"
                return Finding(Verdict.NOTE, text)
            if self._batch.calls > 1:
                text = f"the handler fails {together}, each is then run alone: use batchSize 1"
                return Finding(Verdict.NOTE, text)
        more = ": batchSize may be raised" if may_raise else ""
        return Finding(Verdict.OK, f"same answers {together}{more}")

    async def _send(self, sample: Sample) -> httpx.Response:
        headers = {"content-type": sample.content_type}
        path = sample.path(self._version.name, self._envelope)
        try:
            return await self._client.post(path, content=sample.body, headers=headers)
        except ServingError as error:  # in mid-stream: the status is out already
            return httpx.Response(500, json={"error": error.message})
        finally:
            await asyncio.sleep(0)  # observers are notified of a batch after its answers


def _why(refusal: httpx.Response) -> str:
    """The status and text of an error, in whichever of the two forms its route has."""
    try:
        said = refusal.json()
        text = str(said.get("error") or said["message"])
    except (ValueError, RecursionError, AttributeError, KeyError):  # the handler's own body
        text = refusal.text[:_LONGEST]
    return f"{refusal.status_code} {text}"
