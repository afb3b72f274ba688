"""KServe's histograms are the SDK's to the letter, and are shown once (DESIGN law 8)."""

import kserve.metrics
import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kserve_torch.events import Finished
from kserve_torch.messages import Timing, Verb

from .observed import observed

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
    ours = described(observed(*events).exposition(), "as-the-sdk")
    assert ours == described(generate_latest(REGISTRY), "as-the-sdk")
    assert len(ours) == len(SDK)


@pytest.mark.parametrize("name", ["request_predict_seconds", "request_explain_seconds"])
def test_they_are_shown_once_beside_an_imported_sdk(name):
    text = observed().exposition().decode()
    assert text.count(f"# TYPE {name} histogram") == 1
    assert "process_resident_memory_bytes" in text
