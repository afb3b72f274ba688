"""Snapshots of queues and model versions, for metrics, descriptions and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One queue: how many requests wait, and the age of the oldest in seconds."""

    queued: int
    oldest_age: float


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """One model version; ages in seconds.

    Attributes:
        predict: the queue of predictions.
        explain: the queue of explanations.
        running: requests in running batches.
        inflight: requests that are accepted and not yet answered.
        hung: handler threads that were given up and still hang.
        workers: how many there are in each state.
    """

    predict: LaneStatistics
    explain: LaneStatistics
    running: int
    inflight: int
    hung: int
    workers: Mapping[str, int] = field(default_factory=dict)

    @property
    def queued(self) -> int:
        """Requests that wait, in both queues."""
        return self.predict.queued + self.explain.queued

    @property
    def oldest_age(self) -> float:
        """Seconds that the oldest waiting request has waited."""
        return max(self.predict.oldest_age, self.explain.oldest_age)
