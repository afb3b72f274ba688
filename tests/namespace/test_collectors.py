"""Metrics that archives make with prometheus_client."""

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, Counter

from .made import Make

HANDLER = """
from prometheus_client import Counter, Gauge, Histogram
calls = Counter("kt_test_calls", "Calls.")
sizes = Histogram("kt_test_sizes", "Sizes.", ["kind"], buckets=(1, 2))
level = Gauge("kt_test_level", "Level.")
"""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    yield
    for collector, names in list(REGISTRY._collector_to_names.items()):
        if any(name.startswith("kt_test_") for name in names):
            REGISTRY.unregister(collector)


def test_instances_that_make_the_same_metrics_share_them(make: Make) -> None:
    first, second = (make(name, handler=HANDLER).import_module("handler") for name in "ab")
    for handler in (first, second):
        handler.calls.inc()
        handler.sizes.labels(kind="x").observe(2)
        handler.level.set(3)
    second.level.inc()
    assert REGISTRY.get_sample_value("kt_test_calls_total") == 2
    assert REGISTRY.get_sample_value("kt_test_sizes_count", {"kind": "x"}) == 2
    assert REGISTRY.get_sample_value("kt_test_level") == 4


@pytest.mark.parametrize(
    "other",
    [
        "Gauge('kt_test_sizes', '')",
        "Summary('kt_test_level', '')",
        "Histogram('kt_test_sizes', '', ['other'], buckets=(1, 2))",
        "Histogram('kt_test_sizes', '', ['kind'], buckets=(1, 3))",
    ],
)
def test_other_metrics_of_that_name_are_refused(make: Make, other: str) -> None:
    make("a", handler=HANDLER).import_module("handler")
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        make("b", handler=f"from prometheus_client import *\n{other}").import_module("handler")


def test_the_servers_metrics_are_its_own(make: Make) -> None:
    Counter("kt_test_calls", "The server's.")
    with pytest.raises(ValueError, match="kt_test_calls"):
        make(handler=HANDLER).import_module("handler")
    with pytest.raises(ValueError, match="kt_test_calls"):
        Counter("kt_test_calls", "Once more.")
