"""KServe's histograms are the SDK's to the letter, and are shown once (DESIGN law 8)."""

import kserve.metrics
import pytest
from prometheus_client import CollectorRegistry, Histogram

from kserve_torch.metrics.sdk import KServeMetrics

SDK = (
    kserve.metrics.PRE_HIST_TIME,
    kserve.metrics.POST_HIST_TIME,
    kserve.metrics.PREDICT_HIST_TIME,
    kserve.metrics.EXPLAIN_HIST_TIME,
)


def described(histogram: Histogram) -> tuple[object, ...]:
    family = histogram.describe()[0]
    bounds = tuple(histogram._upper_bounds)
    return family.name, family.documentation, family.type, histogram._labelnames, bounds


def test_ours_are_the_sdks() -> None:
    ours = {described(histogram) for histogram in KServeMetrics()._histograms.values()}
    assert ours == {described(histogram) for histogram in SDK}


@pytest.mark.parametrize("name", ["request_predict_seconds", "request_explain_seconds"])
def test_they_are_shown_once_beside_an_imported_sdk(name: str) -> None:
    text = KServeMetrics().text(None).decode()
    assert text.count(f"# TYPE {name} histogram") == 1
    assert "process_resident_memory_bytes" in text


def test_each_server_counts_for_itself() -> None:
    assert isinstance(KServeMetrics().registry, CollectorRegistry)
    assert KServeMetrics().registry is not KServeMetrics().registry
