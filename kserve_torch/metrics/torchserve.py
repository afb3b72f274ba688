"""TorchServe's families that count events: names, types and labels of CONTRACT X2, rules of X4."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kserve_torch.events import Accepted, Finished, Responded, WorkerChanged
from kserve_torch.messages import Verb
from kserve_torch.metrics.family import Family, Value, counter, gauge

#: What ``metrics_mode=legacy`` shows.
LEGACY = (
    "ts_inference_requests_total",
    "ts_inference_latency_microseconds",
    "ts_queue_latency_microseconds",
)

_MODEL = ("model_name", "model_version", "hostname")
_HOST = ("Level", "Hostname")


def help_text(kind: str, unit: str) -> str:
    """The HELP text that TorchServe gives every family."""
    return f"Torchserve prometheus {kind} metric with unit: {unit}"


def ts_counter(name: str, unit: str, labels: Sequence[str]) -> Family[Value]:
    """A counter with TorchServe's HELP text."""
    return counter(name, help_text("counter", unit), labels)


def ts_gauge(name: str, unit: str, labels: Sequence[str]) -> Family[Value]:
    """A gauge with TorchServe's HELP text."""
    return gauge(name, help_text("gauge", unit), labels)


class TorchServeMetrics:
    """Counts requests, latencies and responses as TorchServe does.

    Args:
        hostname: the value of the ``Hostname`` labels.
        names: the families to show; None shows all.
    """

    def __init__(self, hostname: str, names: Collection[str] | None = None) -> None:
        self._host = hostname
        self._names = names
        self._responses = tuple(
            ts_counter(f"Requests{digit}XX", "Count", _HOST) for digit in (2, 4, 5)
        )
        self._requests = ts_counter("ts_inference_requests_total", "Count", _MODEL)
        self._latency = ts_counter("ts_inference_latency_microseconds", "Microseconds", _MODEL)
        self._queue = ts_counter("ts_queue_latency_microseconds", "Microseconds", _MODEL)
        self._queue_time = ts_gauge("QueueTime", "Milliseconds", _HOST)
        self._thread_time = ts_gauge("WorkerThreadTime", "Milliseconds", _HOST)
        self._load_time = ts_gauge("WorkerLoadTime", "Milliseconds", ("WorkerName", *_HOST))

    def families(self) -> Iterable[Family[Any]]:
        """The families, in the order of TorchServe's own list."""
        families = (
            *self._responses,
            self._requests,
            self._latency,
            self._queue,
            self._queue_time,
            self._thread_time,
            self._load_time,
        )
        return [each for each in families if self._names is None or each.name in self._names]

    def accepted(self, events: Sequence[Accepted]) -> None:
        """Count predictions and explanations that found their model, even if its queue is full."""
        if events[0].verb is not Verb.DESCRIBE:
            self._requests.series(*self._labels(events[0])).add(len(events))

    def finished(self, events: Sequence[Finished]) -> None:
        """Add up the latencies of answered requests; failed ones do not count."""
        if events[0].error is not None or events[0].verb is Verb.DESCRIBE:
            return
        labels = self._labels(events[0])
        queued = sum([event.timing.queued for event in events])
        handler = sum([event.timing.handler for event in events])
        self._latency.series(*labels).add((queued + handler) * 1e6)
        self._queue.series(*labels).add(queued * 1e6)
        self._queue_time.series("Host", self._host).set(events[-1].timing.queued * 1e3)

    def responded(self, events: Sequence[Responded]) -> None:
        """Count answers by class of status, and note the server's own time of the last one.

        Only answers of a handler have such a time.
        """
        status, last = events[0].status, events[-1]
        place = 0 if status < 400 else 1 if status < 500 else 2
        self._responses[place].series("Host", self._host).add(len(events))
        if last.timing.batch_rows:
            own = last.seconds - last.timing.queued - last.timing.handler
            self._thread_time.series("Host", self._host).set(max(0.0, own) * 1e3)

    def worker_changed(self, event: WorkerChanged) -> None:
        """Show how long a worker took to load, for as long as it exists."""
        labels = (f"W-{event.worker}-{event.model}_{event.version}", "Host", self._host)
        if event.seconds:
            self._load_time.series(*labels).set(event.seconds * 1e3)
        else:
            self._load_time.forget(WorkerName=labels[0])

    def left(self, model: str, version: str) -> None:
        """Forget a version, or with "" the requests for the model's default."""
        for family in (self._requests, self._latency, self._queue):
            family.forget(model_name=model, model_version=version or "default")

    def _labels(self, event: Accepted | Finished) -> tuple[str, str, str]:
        return event.model, event.asked or "default", self._host
