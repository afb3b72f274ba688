"""KServe's own histograms (CONTRACT K6), fed by events.

They are made here, in a registry of their own: importing kserve just for them would take a sixth of
the start and tens of megabytes. A test compares them with the SDK's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kserve_torch.events import Finished
from kserve_torch.messages import Verb

_STAGES = {
    "preprocess": "pre-process",
    "predict": "predict",
    "explain": "explain",
    "postprocess": "post-process",
}
_STAGE_OF = {Verb.PREDICT: "predict", Verb.EXPLAIN: "explain"}


class KServeMetrics:
    """KServe's histograms, and the metrics in prometheus_client's default registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._histograms = {
            stage: Histogram(
                f"request_{stage}_seconds",
                f"{words} request latency",
                ["model_name"],
                registry=self.registry,
            )
            for stage, words in _STAGES.items()
        }

    def finished(self, events: Sequence[Finished]) -> None:
        """Note the times of predictions or explanations, queue included."""
        stage = _STAGE_OF.get(events[0].verb)
        if stage is not None and events[0].error is None:
            histogram = self._histograms[stage].labels(events[0].model)
            for event in events:
                histogram.observe(event.timing.queued + event.timing.handler)

    def left(self, model: str, version: str) -> None:
        """Forget a model when its last version has left: ``version`` is "" then."""
        if not version:
            for histogram in self._histograms.values():
                with suppress(KeyError):  # older prometheus_client raises it for unknown labels
                    histogram.remove(model)

    def text(self, names: Collection[str] | None) -> bytes:
        """Both registries as text; if ``names`` is given, only families or samples of these."""
        return generate_latest(_Joined(self.registry, names))


class _Joined(Collector):
    """Our families and the process's, without those of an imported kserve, which are the same."""

    def __init__(self, own: CollectorRegistry, names: Collection[str] | None) -> None:
        self._own = own
        self._names = names

    def collect(self) -> Iterator[Metric]:
        own = list(self._own.collect())
        taken = {metric.name for metric in own}
        for metric in (*own, *(m for m in REGISTRY.collect() if m.name not in taken)):
            names = {metric.name, *(sample.name for sample in metric.samples)}
            if self._names is None or not names.isdisjoint(self._names):
                yield metric
