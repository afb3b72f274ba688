import pytest

from kserve_torch.errors import SettingError
from kserve_torch.events import Measured
from kserve_torch.metrics.custom import HandlerMetrics
from kserve_torch.settings.metrics_file import read_metrics_file

CONFIG = """
dimensions:
  - &model_name "ModelName"
  - &level "Level"
ts_metrics:
  counter:
    - name: Requests2XX
      unit: Count
      dimensions: [*level]
model_metrics:
  counter:
    - name: ImagesSeen
      unit: Count
      dimensions: ["Size", *model_name, *level]
  gauge:
    - name: Brightness
      unit: Percent
      dimensions: [*model_name, *level]
  histogram:
    - name: Pixels
      unit: Count
      dimensions: [*model_name, *level]
"""
MODEL = (("ModelName", "mnist"), ("Level", "Model"))


def handler_metrics(config=None, detect=False, taken=("queue_depth", "queue_count")):
    listed = read_metrics_file(config) if config else ()
    return HandlerMetrics(listed, detect, "host-1", taken)


def text(metrics):
    return [line for family in metrics.families() for line in family.lines()]


def measured(name, kind, value, dimensions=MODEL, unit="count"):
    return Measured(name, kind, unit, dimensions, value)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "metrics.yaml"
    path.write_text(CONFIG)
    return path


def test_listed_metrics_are_shown_with_the_host_appended(config):
    metrics = handler_metrics(config)
    metrics.measured(measured("ImagesSeen", "counter", 2, (("Size", "big"), *MODEL)))
    metrics.measured(measured("ImagesSeen", "counter", 3, (("Size", "big"), *MODEL)))
    metrics.measured(measured("Brightness", "gauge", 40))
    metrics.measured(measured("Brightness", "gauge", 60))
    metrics.measured(measured("Pixels", "histogram", 0.3))
    lines = text(metrics)
    labels = 'ModelName="mnist",Level="Model",Hostname="host-1"'
    assert "# HELP ImagesSeen Torchserve prometheus counter metric with unit: Count" in lines
    assert f'ImagesSeen{{Size="big",{labels}}} 5.0' in lines
    assert f"Brightness{{{labels}}} 60.0" in lines
    assert f'Pixels_bucket{{{labels},le="0.5"}} 1.0' in lines
    assert f'Pixels_bucket{{{labels},le="0.25"}} 0.0' in lines


def test_the_listed_type_holds_however_a_number_is_reported(config, caplog):
    metrics = handler_metrics(config)
    metrics.measured(measured("Pixels", "gauge", 0.3, unit="percent"))
    metrics.measured(measured("Brightness", "counter", 40))
    metrics.measured(measured("Brightness", "counter", 60))
    metrics.measured(measured("HandlerTime", "gauge", -1.5))
    for value in (2, 3, -1):
        metrics.measured(measured("ImagesSeen", "gauge", value, (("Size", "big"), *MODEL)))
    lines = text(metrics)
    labels = 'ModelName="mnist",Level="Model",Hostname="host-1"'
    assert f"Pixels_count{{{labels}}} 1.0" in lines
    assert f"Brightness{{{labels}}} 60.0" in lines
    assert f"HandlerTime{{{labels}}} -1.5" in lines
    assert f'ImagesSeen{{Size="big",{labels}}} 5.0' in lines
    assert caplog.messages == [
        "handler metric ImagesSeen is not shown on /metrics: a counter cannot go down"
    ]


def test_dimensions_are_matched_by_name(config):
    metrics = handler_metrics(config)
    metrics.measured(measured("ImagesSeen", "counter", 1, (*MODEL, ("Size", "big"))))
    assert any(line.startswith('ImagesSeen{Size="big",ModelName="mnist"') for line in text(metrics))


def test_automatic_metrics_need_no_list(config):
    for metrics in (handler_metrics(), handler_metrics(config)):
        metrics.measured(measured("HandlerTime", "gauge", 2.5, unit="ms"))
        metrics.measured(measured("ts_handler_preprocess", "gauge", 1.5, unit="ms"))
        labels = '{ModelName="mnist",Level="Model",Hostname="host-1"}'
        assert f"HandlerTime{labels} 2.5" in text(metrics)
        assert f"ts_handler_preprocess{labels} 1.5" in text(metrics)


def test_unlisted_metric_is_dropped_and_named_once_in_the_log(caplog):
    metrics = handler_metrics()
    for _ in range(3):
        metrics.measured(measured("Brightness", "gauge", 40))
    assert not any("Brightness" in line for line in text(metrics))
    assert caplog.text.count("handler metric Brightness is not shown") == 1
    assert "model_metrics_auto_detect=true" in caplog.text


@pytest.mark.parametrize(
    ("unit", "shown"), [("ms", "Milliseconds"), ("MB", "Megabytes"), ("images", "images")]
)
def test_auto_detection_takes_type_labels_and_unit_from_the_first_report(unit, shown):
    metrics = handler_metrics(detect=True)
    metrics.measured(measured("Decode", "gauge", 40, (("Size", "s"), *MODEL), unit=unit))
    assert text(metrics)[-3:] == [
        f"# HELP Decode Torchserve prometheus gauge metric with unit: {shown}",
        "# TYPE Decode gauge",
        'Decode{Size="s",ModelName="mnist",Level="Model",Hostname="host-1"} 40.0',
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (measured("queue_depth", "gauge", 1), "another metric has the name queue_depth"),
        (measured("queue", "histogram", 1), "another metric has the name queue_count"),
        (measured("m", "gauge", 1, (("__name__", "n"),)), "the label __name__ is Prometheus' own"),
        (measured("m", "histogram", 1, (("le", "1"),)), "the label le is Prometheus' own"),
        (measured("no good", "gauge", 1), "not a name and type for Prometheus"),
        (measured("m", "summary", 1), "not a name and type for Prometheus (summary)"),
        (measured("HandlerTime", "gauge", 1, (("ModelName", "m"),)), "with dimensions"),
    ],
)
def test_reports_that_cannot_be_shown_are_explained(caplog, event, reason):
    metrics = handler_metrics(detect=True)
    before = text(metrics)
    metrics.measured(event)
    assert text(metrics) == before
    assert reason in caplog.text


@pytest.mark.parametrize("first", ["Wait", "Wait_count"])
def test_of_two_metrics_whose_samples_have_one_name_the_first_is_shown(first, caplog):
    metrics = handler_metrics(detect=True)
    events = [measured("Wait", "histogram", 1), measured("Wait_count", "counter", 1)]
    for event in sorted(events, key=lambda event: event.name != first):
        metrics.measured(event)
    assert {"Wait", "Wait_count"} & {family.name for family in metrics.families()} == {first}
    assert "another metric has the name Wait_count" in caplog.text


def test_dimension_names_become_labels_that_prometheus_allows():
    metrics = handler_metrics(detect=True)
    metrics.measured(measured("m", "gauge", 1, (("image-size", "s"), ("2nd", "t"))))
    assert text(metrics)[-1] == 'm{image_size="s",_2nd="t",Hostname="host-1"} 1.0'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("- a\n- b", "the file: ['a', 'b'] is not a mapping"),
        ("model_metrics: 3", "model_metrics: 3 is not a mapping"),
        ("model_metrics: {summary: []}", "model_metrics.summary: not one of counter, gauge"),
        ("model_metrics: {gauge: {name: x}}", "model_metrics.gauge: {'name': 'x'} is not a list"),
        ("model_metrics: {gauge: [x]}", "model_metrics.gauge[0]: 'x' is not a mapping"),
        ("model_metrics: {gauge: [{name: a, dimensions: [3]}]}", "[3] is not a list of names"),
        ("model_metrics: {gauge: [{unit: ms}]}", "model_metrics.gauge[0].name: None"),
        ("model_metrics: {gauge: [{name: a b}]}", "model_metrics.gauge[0].name: 'a b'"),
        ("model_metrics: {gauge: [{name: a, dimensions: 3}]}", "model_metrics.gauge[0].dimensions"),
        ("a: [", "while parsing"),
        ("a: \x00", "unacceptable character"),
        ("a: !!bool x", "metrics.yaml: 'x'"),
        ("a: 2026-02-30", "day is out of range"),
    ],
)
def test_wrong_files_are_one_line_that_names_the_element(tmp_path, content, named):
    path = tmp_path / "metrics.yaml"
    path.write_text(content)
    with pytest.raises(SettingError) as raised:
        read_metrics_file(path)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_file_is_a_setting_error(tmp_path):
    with pytest.raises(SettingError, match="No such file"):
        read_metrics_file(tmp_path / "absent.yaml")


def test_empty_file_lists_nothing(tmp_path):
    path = tmp_path / "metrics.yaml"
    path.write_text("model_metrics:\n  gauge:\n")
    assert read_metrics_file(path) == []
    path.write_text("")
    assert read_metrics_file(path) == []


@pytest.mark.parametrize(
    ("taken", "clash"), [("Brightness", "Brightness"), ("Pixels_sum", "Pixels")]
)
def test_a_listed_name_of_the_server_is_refused(config, taken, clash):
    refused = f"metrics_config: '{clash}': another metric has the name {taken}"
    with pytest.raises(SettingError, match=refused):
        handler_metrics(config, taken=(taken,))


def test_listed_metrics_whose_samples_have_one_name_are_refused(config):
    config.write_text(CONFIG.replace("Brightness", "Pixels_count"))
    with pytest.raises(SettingError, match="'Pixels': another metric has the name Pixels_count"):
        handler_metrics(config)
