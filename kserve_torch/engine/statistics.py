"""Snapshots of queues and model versions, for metrics, descriptions and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """One queue: how many requests wait, and the age of the oldest in seconds."""

    queued: int
    oldest_age: float


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """One model version, its two queues together.

    Attributes:
        queued: requests that wait.
        oldest_age: seconds that the oldest of them has waited.
        running: requests in running batches.
        inflight: requests that are accepted and not yet answered.
        hung: handler threads that were given up and still hang.
        workers: how many there are for predictions in each state.
    """

    queued: int
    oldest_age: float
    running: int
    inflight: int
    hung: int
    workers: Mapping[str, int]
