"""KServe's own histograms (CONTRACT K6), and what else the process measures.

The histograms are made here: importing kserve just for them would take a sixth of the start and
tens of megabytes. A test compares them with the SDK's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kserve_torch.events import Finished
from kserve_torch.messages import Verb
from kserve_torch.metrics.family import CLIENT_SECONDS, Family, histogram, names_of

_PREDICT, _EXPLAIN = "request_predict_seconds", "request_explain_seconds"
#: Their names and texts.
_HISTOGRAMS = {
    "request_preprocess_seconds": "pre-process request latency",
    _PREDICT: "predict request latency",
    _EXPLAIN: "explain request latency",
    "request_postprocess_seconds": "post-process request latency",
}
_NAMES = {Verb.PREDICT: _PREDICT, Verb.EXPLAIN: _EXPLAIN}


class KServeMetrics:
    """The histograms of KServe's SDK."""

    def __init__(self) -> None:
        self._histograms = {
            name: histogram(name, text, ("model_name",), CLIENT_SECONDS)
            for name, text in _HISTOGRAMS.items()
        }

    def families(self) -> Iterable[Family[Any]]:
        """One for each stage; the handler's own stages are not told apart."""
        return self._histograms.values()

    def finished(self, events: Sequence[Finished]) -> None:
        """Note the times of predictions or explanations, queue included."""
        first = events[0]
        name = _NAMES.get(first.verb)
        if name is not None and first.error is None:
            series = self._histograms[name].series(first.model)
            series.observe(*[event.timing.queued + event.timing.handler for event in events])

    def left(self, model: str, version: str) -> None:
        """Forget a model when its last version has left: ``version`` is "" then."""
        if not version:
            for family in self.families():
                family.forget(model_name=model)


def process_text(
    names: Collection[str] | None,
    taken: frozenset[str],
    report: Callable[[str, Exception | None], None],
) -> bytes:
    """The metrics in prometheus_client's default registry, where handlers may have put their own.

    Args:
        names: families or samples to keep; None keeps all.
        taken: the names of the server's own families and their samples; one that is there twice
            makes the whole text unreadable for some of its readers.
        report: takes what hides a metric, and the error if there is one.
    """
    texts: list[bytes] = []
    # Not by REGISTRY.collect(), which ends with the first collector that raises.
    for collector, known_as in list(REGISTRY._collector_to_names.items()):
        try:
            for metric in collector.collect():
                if clash := names_in(metric) & taken:
                    _report_clash(metric, min(clash), report)
                elif names is None or not {metric.name, *names_in(metric)}.isdisjoint(names):
                    texts.append(generate_latest(_Only(metric)))
        except Exception as error:  # a handler's collector may raise anything
            name = known_as[0] if known_as else type(collector).__name__
            report(f"metric {name} is not shown on /metrics: it cannot be measured", error)
    return b"".join(texts)


def names_in(metric: Metric) -> frozenset[str]:
    """The names that a metric of prometheus_client and its samples have in the text."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return names_of(name, metric.type).union(sample.name for sample in metric.samples)


def _report_clash(metric: Metric, name: str, report: Callable[[str, None], None]) -> None:
    if metric.name not in _HISTOGRAMS:
        why = f"another metric has the name {name}"
        report(f"handler metric {metric.name} is not shown on /metrics: {why}", None)


class _Only(Collector):
    """One metric, as something that `generate_latest` takes."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        """The metric."""
        return [self._metric]
