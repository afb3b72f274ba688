"""This server's own families, for dashboards, alerts and autoscalers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kserve_torch.events import BatchRan, Finished, Responded, Shed, StateChanged, WorkerChanged
from kserve_torch.metrics.family import ROWS, Family, counter, histogram

_VERSION = ("model_name", "model_version")
#: ``model_name`` and ``model_version`` of requests for unknown models: names that clients make up
#: must not become labels, or they could fill the memory with series.
UNKNOWN = ("", "")


class ServingMetrics:
    """Counts requests, refusals, failures and the time of each stage."""

    def __init__(self) -> None:
        #: Model and version of all that were loaded; and each model with "", for no version.
        self._known: set[tuple[str, str]] = set()
        labels = (*_VERSION, "protocol", "code")
        self._requests = counter("requests_total", "Responses, by protocol and status code", labels)
        self._duration = histogram(
            "request_duration_seconds",
            "From a request's last byte to its response",
            (*_VERSION, "protocol"),
        )
        self._queue = histogram("queue_time_seconds", "Time in the queue", _VERSION)
        self._handler = histogram(
            "handler_time_seconds", "Time in the handler, for the whole batch", _VERSION
        )
        self._rows = histogram("batch_rows", "Rows per batch", _VERSION, ROWS)
        self._batched = histogram("batch_requests", "Requests per batch", _VERSION, ROWS)
        self._splits = counter(
            "batch_splits_total", "Batches that failed and were re-run in parts", _VERSION
        )
        self._shed = counter(
            "requests_shed_total",
            "Requests rejected or dropped before they reached a handler, by reason",
            (*_VERSION, "reason"),
        )
        self._failures = counter(
            "requests_failed_total",
            "Accepted requests that failed, by error",
            (*_VERSION, "error"),
        )
        self._workers = counter(
            "worker_events_total", "Changes of workers, by the new state", (*_VERSION, "state")
        )

    def families(self) -> Iterable[Family[Any]]:
        """The families: traffic, latency by stage, batches, refusals and failures, workers."""
        return (
            self._requests,
            self._duration,
            self._queue,
            self._handler,
            self._rows,
            self._batched,
            self._splits,
            self._shed,
            self._failures,
            self._workers,
        )

    def responded(self, events: Sequence[Responded]) -> None:
        """Count answers and their time."""
        first = events[0]
        labels = (first.model, first.version)
        labels = labels if labels in self._known else UNKNOWN
        self._requests.series(*labels, first.protocol, str(first.status)).add(len(events))
        seconds = [event.seconds for event in events]
        self._duration.series(*labels, first.protocol).observe(*seconds)

    def finished(self, events: Sequence[Finished]) -> None:
        """Note the times of answered requests, or the error of failed ones."""
        first = events[0]
        labels = (first.model, first.version)
        if first.error is None:
            self._queue.series(*labels).observe(*[event.timing.queued for event in events])
            self._handler.series(*labels).observe(*[event.timing.handler for event in events])
        else:
            self._failures.series(*labels, first.error).add(len(events))

    def batch_ran(self, event: BatchRan) -> None:
        """Note a batch's size, and whether it had to be run in parts."""
        self._rows.series(event.model, event.version).observe(event.rows)
        self._batched.series(event.model, event.version).observe(event.requests)
        if event.calls > 1:
            self._splits.series(event.model, event.version).add()

    def shed(self, event: Shed) -> None:
        """Count a request that no handler saw."""
        self._shed.series(event.model, event.version, event.reason).add()

    def state_changed(self, event: StateChanged) -> None:
        """Note that a version exists."""
        self._known.update([(event.model, event.version), (event.model, "")])
        # 0 before the first, or Prometheus sees no rise: four workers that hang at once have
        # the process restarted.
        self._splits.series(event.model, event.version)
        for state in ("FAILED", "HUNG"):
            self._workers.series(event.model, event.version, state)

    def left(self, model: str, version: str) -> None:
        """Forget a version, or with "" what belonged to none."""
        self._known.discard((model, version))
        for family in self.families():
            family.forget(model_name=model, model_version=version)

    def worker_changed(self, event: WorkerChanged) -> None:
        """Count a change of a worker's state."""
        self._workers.series(event.model, event.version, event.state).add()
