"""KServe's histograms are the SDK's to the letter, and are shown once (DESIGN law 8)."""

from contextlib import ExitStack

import kserve.metrics
import pytest
from prometheus_client import REGISTRY, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kserve_torch.events import Finished
from kserve_torch.messages import Timing, Verb

from .observed import LIGHT_LOAD, exposition, observed

SDK = (
    kserve.metrics.PRE_HIST_TIME,
    kserve.metrics.POST_HIST_TIME,
    kserve.metrics.PREDICT_HIST_TIME,
    kserve.metrics.EXPLAIN_HIST_TIME,
)


def described(text, model):
    """Per histogram of KServe its text, type and samples of one model."""
    return {
        family.name: (
            family.documentation,
            family.type,
            {
                (sample.name, *sorted(sample.labels.items()), sample.value)
                for sample in family.samples
                if sample.labels["model_name"] == model
            },
        )
        for family in text_string_to_metric_families(text.decode())
        if family.name in {histogram.describe()[0].name for histogram in SDK}
    }


def test_ours_are_the_sdks():
    for histogram in SDK[2:]:
        histogram.labels("as-the-sdk").observe(0.75)
    timing = Timing(queued=0.25, handler=0.5)
    verbs = (Verb.PREDICT, Verb.EXPLAIN)
    events = [Finished("as-the-sdk", "1.0", timing, verb=verb) for verb in verbs]
    ours = described(exposition(observed(*events)), "as-the-sdk")
    assert ours == described(generate_latest(REGISTRY), "as-the-sdk")
    assert len(ours) == len(SDK)


@pytest.mark.parametrize("name", ["request_predict_seconds", "request_explain_seconds"])
def test_they_are_shown_once_beside_an_imported_sdk(name):
    text = exposition(observed()).decode()
    assert text.count(f"# TYPE {name} histogram") == 1
    assert "process_resident_memory_bytes" in text


class Broken(Collector):
    def collect(self):
        raise RuntimeError("no such device")

    def describe(self):
        return []


class WithoutValue(Broken):
    def collect(self):
        return [GaugeMetricFamily("without_value", "", value="none")]


@pytest.fixture
def registered():
    """Registers collectors until the test ends."""
    with ExitStack() as stack:

        def register(collector):
            REGISTRY.register(collector)
            stack.callback(REGISTRY.unregister, collector)

        yield register


def undecodable():
    gauge = Gauge("undecodable", "of a handler", ["file"], registry=None)
    gauge.labels("\udcff").set(1)
    return gauge


@pytest.mark.parametrize("kind", [Broken, WithoutValue, undecodable])
def test_a_handlers_collector_that_fails_hides_nothing_else(kind, registered, caplog):
    metrics = observed(*LIGHT_LOAD)
    registered(kind())
    registered(Gauge("later", "of another handler", registry=None))
    texts = [exposition(metrics).decode() for _ in range(2)]
    for name in ("queue_depth", "process_resident_memory_bytes", "later"):
        assert all(f"# TYPE {name} " in text for text in texts)
    assert caplog.text.count("cannot be measured") == 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Counter, "requests"),
        (Counter, "requests_total"),
        (Gauge, "queue_depth"),
        (Gauge, "request_duration_seconds_count"),
    ],
)
def test_a_handlers_own_metric_with_a_name_of_the_servers_is_named_and_not_shown(
    kind, name, registered, caplog
):
    registered(kind(name, "of a handler", ["own"], registry=None))
    metrics = observed(*LIGHT_LOAD)
    texts = [exposition(metrics).decode() for _ in range(2)]
    for text in texts:
        declared = [line for line in text.splitlines() if line.startswith("# TYPE ")]
        assert len(declared) == len(set(declared))
        assert "of a handler" not in text
    assert caplog.text.count("another metric has the name") == 1


def test_a_handlers_own_metric_is_shown(registered):
    counter = Counter("words", "of a handler", registry=None)
    registered(counter)
    counter.inc(3)
    assert "\nwords_total 3.0\n" in exposition(observed()).decode()
    assert b"\nwords_total 3.0\n" in exposition(observed(), ["words_total"])
