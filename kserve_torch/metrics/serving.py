"""This server's own families: what dashboards, alerts and autoscalers of a pod need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kserve_torch.events import BatchRan, Finished, Responded, Shed, WorkerChanged
from kserve_torch.metrics.family import ROWS, Family, counter, histogram

_VERSION = ("model_name", "model_version")
#: ``model_name`` and ``model_version`` of a request for a model that is not served: a client's own
#: spelling must not become a label, or anybody could fill the memory with series.
UNKNOWN = ("", "")


class ServingMetrics:
    """Counts requests, refusals, failures and the time of each stage.

    Args:
        known: whether a model of that name and version is served.
    """

    def __init__(self, known: Callable[[str, str], bool]) -> None:
        self._known = known
        labels = (*_VERSION, "protocol", "code")
        self._requests = counter("requests_total", "Answers sent, by protocol and status", labels)
        self._duration = histogram(
            "request_duration_seconds",
            "From a request's last byte in to its answer",
            (*_VERSION, "protocol"),
        )
        self._queue = histogram("queue_time_seconds", "Wait in the queue", _VERSION)
        self._handler = histogram(
            "handler_time_seconds", "Time in the handler, with its batch", _VERSION
        )
        self._rows = histogram("batch_rows", "Rows that a batch held", _VERSION, ROWS)
        self._batched = histogram("batch_requests", "Requests that a batch held", _VERSION, ROWS)
        self._shed = counter(
            "requests_shed_total",
            "Requests refused or dropped before a handler saw them, by reason",
            (*_VERSION, "reason"),
        )
        self._failures = counter(
            "requests_failed_total",
            "Accepted requests without an answer, by error",
            (*_VERSION, "error"),
        )
        self._workers = counter(
            "worker_events_total", "Changes of workers, by the new state", (*_VERSION, "state")
        )

    def families(self) -> Iterable[Family[Any]]:
        """The families: traffic, latency by stage, batches, refusals and failures, workers."""
        return (
            *(self._requests, self._duration, self._queue, self._handler),
            *(self._rows, self._batched, self._shed, self._failures, self._workers),
        )

    def responded(self, event: Responded) -> None:
        """Count an answer and its time."""
        served = self._known(event.model, event.version)
        model, version = (event.model, event.version) if served else UNKNOWN
        self._requests.series(model, version, event.protocol, str(event.status)).add()
        self._duration.series(model, version, event.protocol).observe(event.seconds)

    def finished(self, event: Finished) -> None:
        """Note where an answered request's time went, or the error that ended it."""
        labels = (event.request.model, event.version)
        if event.error is None:
            self._queue.series(*labels).observe(event.timing.queued)
            self._handler.series(*labels).observe(event.timing.handler)
        else:
            self._failures.series(*labels, event.error).add()

    def batch_ran(self, event: BatchRan) -> None:
        """Note a batch's size."""
        self._rows.series(event.model, event.version).observe(event.rows)
        self._batched.series(event.model, event.version).observe(event.requests)

    def shed(self, event: Shed) -> None:
        """Count a request that no handler saw."""
        self._shed.series(event.model, event.version, event.reason).add()

    def worker_changed(self, event: WorkerChanged) -> None:
        """Count a change of a worker's state."""
        self._workers.series(event.model, event.version, event.state).add()
