import inspect
import logging
import re

import pytest

from kserve_torch.settings.metrics_file import ListedMetric
from kserve_torch.ts.metrics import metric_cache_errors as errors
from kserve_torch.ts.metrics import system_metrics
from kserve_torch.ts.metrics.dimension import Dimension
from kserve_torch.ts.metrics.metric import Metric
from kserve_torch.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from kserve_torch.ts.metrics.metric_type_enum import MetricTypes
from kserve_torch.ts.metrics.metrics_store import MetricsStore


@pytest.fixture
def measured():
    return []


@pytest.fixture
def metrics(measured):
    metrics = MetricsCacheYamlImpl(model_name="m", measure=measured.append)
    metrics.set_request_ids({0: "a", 1: "b"})
    return metrics


MODEL = (("ModelName", "m"), ("Level", "Model"))


@pytest.mark.parametrize(
    ("method", "arguments", "kind", "unit", "value"),
    [
        ("add_counter", ("n", 2), "counter", "count", 2),
        ("add_time", ("n", 1.5), "gauge", "ms", 1.5),
        ("add_time", ("n", 1.5, None, "s"), "gauge", "s", 1.5),
        ("add_size", ("n", 3), "gauge", "MB", 3),
        ("add_size", ("n", 3, None, "kB"), "gauge", "kB", 3),
        ("add_percent", ("n", 99), "gauge", "percent", 99),
        ("add_metric", ("n", 1, "things"), "counter", "things", 1),
        ("add_metric", ("n", 1, "ms", None, [], MetricTypes.HISTOGRAM), "histogram", "ms", 1),
    ],
)
def test_each_method_measures(metrics, measured, method, arguments, kind, unit, value):
    getattr(metrics, method)(*arguments)
    (event,) = measured
    assert (event.name, event.kind, event.unit, event.value) == ("n", kind, unit, value)
    assert event.dimensions == MODEL


def test_a_metric_of_one_row_or_of_none(metrics, measured, caplog):
    caplog.set_level("INFO", "ts.metrics")
    metrics.add_counter("n", 1)
    metrics.add_counter("n", 1, 1)
    metrics.add_error("e", 1)
    metrics.set_request_ids(None)
    metrics.add_counter("n2", 1)
    error = (("Level", "Error"),)
    assert [event.dimensions for event in measured] == [MODEL, MODEL, error, error]
    ends = [record.getMessage().partition("#hostname:")[2] for record in caplog.records]
    assert [end.split(",")[2:] for end in ends] == [["a", "b"], ["b"], [], []]
    assert measured[2].unit == "unit"


def test_own_labels_come_first_and_the_list_stays_as_it_was(metrics, measured):
    dimensions = [Dimension("Digit", 3)]
    for _ in range(2):
        metrics.add_counter("n", 1, dimensions=dimensions)
        metrics.add_counter("plain", 1)
    assert [str(dimension) for dimension in dimensions] == ["Digit:3"]
    assert [event.dimensions for event in measured] == [(("Digit", "3"), *MODEL), MODEL] * 2


def test_labels_of_the_same_names_are_not_added_again(metrics, measured):
    metrics.add_counter("n", 1, dimensions=[Dimension("Level", "Host")])
    assert measured[0].dimensions == (("Level", "Host"), ("ModelName", "m"))


def test_label_names_are_measured_as_text(metrics, measured):
    dimensions = [Dimension(3, "x")]
    metrics.add_counter("n", 1, dimensions=dimensions)
    metrics.get_metric("n").update(1, dimensions=dimensions)
    assert [event.dimensions for event in measured] == [(("3", "x"), *MODEL), (("3", "x"),)]


def test_no_default_is_a_mutable_object():
    for _, method in inspect.getmembers(MetricsCacheYamlImpl, inspect.isfunction):
        for parameter in inspect.signature(method).parameters.values():
            assert not isinstance(parameter.default, (list, dict))


def test_wrong_units(metrics):
    with pytest.raises(errors.MetricsCacheValueError, match="min"):
        metrics.add_time("n", 1, unit="min")
    with pytest.raises(ValueError, match="TB"):
        metrics.add_size("n", 1, unit="TB")


def test_wrong_values_are_logged_and_not_raised(metrics, measured, caplog):
    metrics.add_counter("n", -1)
    metrics.add_metric_to_cache("two", "count", ["A", "B"]).add_or_update(1, ["only one"])
    assert measured == []
    assert "a counter cannot go down" in caplog.text
    assert "['only one'] for ['A', 'B']" in caplog.text


@pytest.mark.parametrize("method", ["add_counter", "add_time", "add_size", "add_percent"])
@pytest.mark.parametrize(
    "value", [None, "fast", [1], 10**400], ids=["None", "text", "list", "huge"]
)
def test_what_is_no_number_is_dropped_and_said_once(metrics, measured, caplog, method, value):
    for _ in range(2):
        getattr(metrics, method)("n", value)
    assert measured == []
    (record,) = caplog.records
    assert "is no number" in record.getMessage()
    getattr(metrics, method)("n", "2.5")
    assert [event.value for event in measured] == [2.5]


def test_metrics_by_name(metrics, measured):
    metric = metrics.add_metric_to_cache("n", "ms", ["A"], MetricTypes.HISTOGRAM)
    assert metrics.get_metric("n", MetricTypes.HISTOGRAM) is metric
    assert metrics.cache_keys() == ["histogram:n"]
    metric.add_or_update(4, ["x"], "r1")
    assert (measured[0].kind, measured[0].dimensions) == ("histogram", (("A", "x"),))
    metric.update(5, "r2", [Dimension("B", "y")])
    assert measured[1].dimensions == (("B", "y"),)
    with pytest.raises(errors.MetricsCacheKeyError, match="counter 'n'"):
        metrics.get_metric("n")
    with pytest.raises(KeyError):
        metrics.get_metric("other")


@pytest.mark.parametrize(
    "arguments", [(1, "ms"), ("n", 1), ("n", "ms", "A"), ("n", "ms", [], "counter")]
)
def test_arguments_of_the_wrong_type(metrics, arguments):
    with pytest.raises(errors.MetricsCacheTypeError):
        metrics.add_metric_to_cache(*arguments)


def test_torchservs_log_line(metrics, caplog):
    caplog.set_level(logging.INFO, "ts.metrics.caching_metric")
    metrics.add_time("Wait", 1.25, 0)
    (record,) = caplog.records
    assert record.name == "ts.metrics.caching_metric"
    assert re.fullmatch(
        r"\[METRICS\]Wait\.Milliseconds:1\.25\|#ModelName:m,Level:Model\|#type:GAUGE"
        r"\|#hostname:[^,]+,\d+,a",
        record.getMessage(),
    )


def test_metrics_without_labels(metrics, measured):
    metrics.add_metric_to_cache("n", "ms", None).add_or_update(4)
    assert [(event.name, event.dimensions) for event in measured] == [("n", ())]


LISTED = [
    ListedMetric("counter", "Seen", "Count", ("Size", "ModelName")),
    ListedMetric("gauge", "Wait", "Milliseconds", ("Level", "ModelName")),
]


def test_listed_metrics_are_there_by_name(metrics, measured, caplog):
    metrics.add_listed(LISTED)
    assert metrics.cache_keys() == [
        *("counter:Seen", "gauge:Wait", "gauge:HandlerTime", "gauge:PredictionTime")
    ]
    metrics.get_metric("Seen").add_or_update(2, ["big", "m"])
    metrics.get_metric("HandlerTime", MetricTypes.GAUGE).add_or_update(3.5, ["m", "Model"])
    metrics.add_time("Wait", 1)
    assert [(event.name, event.dimensions, event.value) for event in measured] == [
        ("Seen", (("Size", "big"), ("ModelName", "m")), 2),
        ("HandlerTime", MODEL, 3.5),
        ("Wait", (("Level", "Model"), ("ModelName", "m")), 1),
    ]
    assert not caplog.records


def test_a_listed_handler_time_is_the_one_that_counts(metrics, caplog):
    metrics.add_listed([ListedMetric("gauge", "HandlerTime", "s", ("ModelName", "Level"))])
    assert metrics.get_metric("HandlerTime", MetricTypes.GAUGE).unit == "Seconds"
    assert not caplog.records


def test_the_old_store():
    store = MetricsStore({0: "a", 1: "b"}, "m")
    store.add_counter("n", 1, 0)
    store.add_counter("n", 2, 0)
    store.add_time("t", 5)
    store.add_time("t", 6)
    store.add_error("e", "text")
    store.add_percent("p", 1)
    store.add_size("s", 1, dimensions=[Dimension("A", "x")])
    store.add_metric("other", 1, "things")
    assert [(metric.name, metric.value) for metric in store.store] == [
        ("n", 3),
        ("t", 6),
        ("e", "text"),
        ("p", 1),
        ("s", 1),
        ("other", 1),
    ]
    assert re.fullmatch(
        r"n\.Count:3\|#ModelName:m,Level:Model\|#hostname:[^,]+,\d+,a", str(store.store[0])
    )
    assert store.store[4].to_dict()["Unit"] == "Megabytes"
    assert store.store[4].dimensions[0].to_dict() == {"Name": "A", "Value": "x"}
    with pytest.raises(ValueError, match="min"):
        store.add_time("t", 1, unit="min")


def test_a_metric_begins_again():
    metric = Metric("n", 3, "count", [], metric_method="counter")
    metric.update(4)
    assert metric.value == 7
    metric.reset()
    assert metric.value == 0


def test_the_machines_numbers(monkeypatch, caplog):
    caplog.set_level(logging.INFO, system_metrics.__name__)
    monkeypatch.setattr(system_metrics, "system_metrics", [])
    system_metrics.collect_all(system_metrics, 0)
    found = {metric.name: metric.value for metric in system_metrics.system_metrics}
    assert set(found) == {
        *("CPUUtilization", "MemoryUsed", "MemoryAvailable", "MemoryUtilization"),
        *("DiskUsage", "DiskUtilization", "DiskAvailable"),
    }
    assert 0 < found["MemoryUtilization"] <= 100
    assert len(caplog.records) == 7
    assert "MemoryUsed.Megabytes:" in caplog.text
