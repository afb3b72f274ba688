import asyncio
import socket
import subprocess
import sys
import time
from itertools import chain, starmap
from pathlib import Path

import pytest
from prometheus_client import Histogram
from prometheus_client.parser import text_string_to_metric_families

from kserve_torch.events import (
    Accepted,
    BatchRan,
    Finished,
    Measured,
    Responded,
    Shed,
    StateChanged,
    WorkerChanged,
)
from kserve_torch.messages import Timing, Verb

from .observed import LIGHT_LOAD, TIMING, Fleet, exposition, observed

HOST = socket.gethostname()

#: CONTRACT X2, each with its type and the labels in their order.
TORCHSERVE = {
    "Requests2XX": ("counter", ["Level", "Hostname"]),
    "Requests4XX": ("counter", ["Level", "Hostname"]),
    "Requests5XX": ("counter", ["Level", "Hostname"]),
    "ts_inference_requests_total": ("counter", ["model_name", "model_version", "hostname"]),
    "ts_inference_latency_microseconds": ("counter", ["model_name", "model_version", "hostname"]),
    "ts_queue_latency_microseconds": ("counter", ["model_name", "model_version", "hostname"]),
    "QueueTime": ("gauge", ["Level", "Hostname"]),
    "WorkerThreadTime": ("gauge", ["Level", "Hostname"]),
    "WorkerLoadTime": ("gauge", ["WorkerName", "Level", "Hostname"]),
    "CPUUtilization": ("gauge", ["Level", "Hostname"]),
    "MemoryUsed": ("gauge", ["Level", "Hostname"]),
    "MemoryAvailable": ("gauge", ["Level", "Hostname"]),
    "MemoryUtilization": ("gauge", ["Level", "Hostname"]),
    "DiskUsage": ("gauge", ["Level", "Hostname"]),
    "DiskUtilization": ("gauge", ["Level", "Hostname"]),
    "DiskAvailable": ("gauge", ["Level", "Hostname"]),
    "HandlerTime": ("gauge", ["ModelName", "Level", "Hostname"]),
    "PredictionTime": ("gauge", ["ModelName", "Level", "Hostname"]),
}
GPU = ("GPUMemoryUtilization", "GPUMemoryUsed", "GPUUtilization")


def lines(metrics, name):
    """The samples of one name, as text."""
    text = exposition(metrics).decode()
    return [x for x in text.splitlines() if x.startswith((name + "{", name + " "))]


def types(text):
    words = [line.split() for line in text.splitlines() if line.startswith("# TYPE")]
    return {name: kind for _, _, name, kind in words}


def test_torchserve_families_have_their_names_types_and_help():
    text = exposition(observed()).decode()
    found = types(text)
    for name, (kind, _) in TORCHSERVE.items():
        assert found[name] == kind
        assert f"# HELP {name} Torchserve prometheus {kind} metric with unit: " in text
    assert set(GPU) <= found.keys()


@pytest.mark.parametrize("name", [n for n in TORCHSERVE if n not in ("Requests4XX", "Requests5XX")])
def test_torchserve_series_have_their_labels_in_order(name):
    (line,) = lines(observed(*LIGHT_LOAD), name)
    labels = line[line.index("{") + 1 : line.index("}")].split(",")
    assert [label.split("=")[0] for label in labels] == TORCHSERVE[name][1]
    assert labels[-1].endswith(f'="{HOST}"')


def test_no_family_of_ours_is_suffixed_untyped_or_written_twice():
    text = exposition(observed(*LIGHT_LOAD)).decode()
    declared = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(declared) == len(set(declared))
    assert "untyped" not in types(text).values()
    for name in TORCHSERVE:
        assert f"\n{name}_total" not in text
        assert f"\n{name}_created" not in text


def test_requests_are_counted_when_they_are_accepted_with_the_version_asked_for():
    metrics = observed(
        Accepted("mnist"),
        Accepted("mnist", verb=Verb.EXPLAIN),
        Accepted("mnist", "1.0"),
        Accepted("mnist", verb=Verb.DESCRIBE),
    )
    name = "ts_inference_requests_total"
    assert lines(metrics, name) == [
        f'{name}{{model_name="mnist",model_version="default",hostname="{HOST}"}} 2.0',
        f'{name}{{model_name="mnist",model_version="1.0",hostname="{HOST}"}} 1.0',
    ]


def test_latencies_count_answers_of_the_handler_alone():
    metrics = observed(
        Finished("mnist", "1.0", TIMING),
        Finished("mnist", "1.0", TIMING, "HandlerError"),
        Finished("mnist", "1.0", TIMING, verb=Verb.DESCRIBE),
    )
    (latency,) = lines(metrics, "ts_inference_latency_microseconds")
    (queue,) = lines(metrics, "ts_queue_latency_microseconds")
    (queue_time,) = lines(metrics, "QueueTime")
    assert latency.endswith(" 750000.0")
    assert queue.endswith(" 250000.0")
    assert queue_time == f'QueueTime{{Level="Host",Hostname="{HOST}"}} 250.0'


def test_prediction_time_is_there_for_every_handler():
    metrics = observed(
        Finished("mnist", "1.0", TIMING), Finished("mnist", "1.0", Timing(handler=9.0), "Cancelled")
    )
    assert lines(metrics, "PredictionTime") == [
        f'PredictionTime{{ModelName="mnist",Level="Model",Hostname="{HOST}"}} 500.0'
    ]


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (200, "Requests2XX"),
        (400, "Requests4XX"),
        (499, "Requests4XX"),
        (500, "Requests5XX"),
    ],
)
def test_responses_are_counted_by_class(status, name):
    metrics = observed(Responded("native", "", "", status, 0.1))
    assert lines(metrics, name) == [f'{name}{{Level="Host",Hostname="{HOST}"}} 1.0']


def test_worker_thread_time_is_what_the_last_answer_took_beside_queue_and_handler():
    metrics = observed(
        Responded("native", "mnist", "1.0", 200, 1.0, timing=TIMING),
        Responded("native", "", "", 404, 9.0),
    )
    assert lines(metrics, "WorkerThreadTime") == [
        f'WorkerThreadTime{{Level="Host",Hostname="{HOST}"}} 250.0'
    ]


def test_worker_load_time_names_the_worker_as_torchserve_does():
    metrics = observed(WorkerChanged("mnist", "1.0", 9001, "READY", 1.5))
    assert lines(metrics, "WorkerLoadTime") == [
        f'WorkerLoadTime{{WorkerName="W-9001-mnist_1.0",Level="Host",Hostname="{HOST}"}} 1500.0'
    ]


@pytest.mark.parametrize("end", ["STOPPED", "FAILED", "HUNG"])
def test_a_worker_that_is_gone_has_no_series(end):
    metrics = observed(
        WorkerChanged("mnist", "1.0", 9001, "READY", 1.5),
        WorkerChanged("mnist", "1.0", 9002, "READY", 2.5),
        WorkerChanged("mnist", "1.0", 9001, end),
        WorkerChanged("mnist", "1.0", 9003, end),
    )
    (line,) = lines(metrics, "WorkerLoadTime")
    assert "W-9002-mnist_1.0" in line


def test_gauges_show_the_registry_at_the_moment_of_the_scrape():
    fleet = Fleet(queued=3, inflight=5, oldest_age=1.5, workers={"READY": 2, "LOADING": 1}, hung=1)
    metrics = observed(fleet=fleet)
    labels = 'model_name="mnist",model_version="1.0"'
    assert lines(metrics, "queue_depth") == [f"queue_depth{{{labels}}} 3.0"]
    assert lines(metrics, "inflight_requests") == [f"inflight_requests{{{labels}}} 5.0"]
    assert lines(metrics, "oldest_request_age_seconds")[0].endswith(" 1.5")
    assert lines(metrics, "model_ready") == [f"model_ready{{{labels}}} 1.0"]
    assert lines(metrics, "server_ready") == ["server_ready 1.0"]
    assert lines(metrics, "workers") == [
        f'workers{{{labels},state="READY"}} 2.0',
        f'workers{{{labels},state="LOADING"}} 1.0',
        f'workers{{{labels},state="HUNG"}} 1.0',
    ]
    fleet.now = Fleet().now
    assert lines(metrics, "queue_depth") == [f"queue_depth{{{labels}}} 0.0"]


def test_stages_batches_refusals_and_failures_are_told_apart():
    fleet = Fleet()
    metrics = observed(
        *LIGHT_LOAD,
        Shed("mnist", "1.0", "queue_full"),
        Finished("mnist", "1.0", Timing(), "DeadlineExceeded"),
        fleet=fleet,
    )
    labels = 'model_name="mnist",model_version="1.0"'
    assert lines(metrics, "queue_time_seconds_sum") == [f"queue_time_seconds_sum{{{labels}}} 0.25"]
    assert lines(metrics, "handler_time_seconds_count")[0].endswith(" 1.0")
    assert lines(metrics, "request_duration_seconds_sum")[0].endswith(" 0.8")
    assert f'batch_rows_bucket{{{labels},le="4.0"}} 1.0' in lines(metrics, "batch_rows_bucket")
    assert f'batch_rows_bucket{{{labels},le="2.0"}} 0.0' in lines(metrics, "batch_rows_bucket")
    assert lines(metrics, "batch_requests_sum")[0].endswith(" 2.0")
    assert lines(metrics, "batch_splits_total") == [f"batch_splits_total{{{labels}}} 0.0"]
    fleet.observers.tell(BatchRan("mnist", "1.0", 4, 2, calls=3))
    assert f'worker_events_total{{{labels},state="HUNG"}} 0.0' in lines(
        metrics, "worker_events_total"
    )
    assert lines(metrics, "batch_splits_total") == [f"batch_splits_total{{{labels}}} 1.0"]
    assert lines(metrics, "requests_shed_total") == [
        f'requests_shed_total{{{labels},reason="queue_full"}} 1.0'
    ]
    assert lines(metrics, "requests_failed_total") == [
        f'requests_failed_total{{{labels},error="DeadlineExceeded"}} 1.0'
    ]


async def test_events_are_counted_alike_one_by_one_and_by_the_hundred():
    events = []
    for number in range(350):
        timing = Timing(queued=number / 1000, handler=0.5, batch_rows=4)
        status, error = (200, None) if number % 7 else (500, "HandlerError")
        events += [
            Accepted("mnist", "1.0" if number % 3 else ""),
            Finished("mnist", "1.0", timing, error),
            Responded("v1", "mnist", "1.0", status, number / 100, timing=timing),
        ]
    fleet = Fleet()
    one_by_one = observed(fleet=fleet)
    for event in events:
        fleet.observers.tell(event)
        exposition(one_by_one)
    assert counted(observed(*events)) == pytest.approx(counted(one_by_one))
    (sample,) = lines(one_by_one, "request_duration_seconds_count")
    assert sample.endswith(" 350.0")


async def test_many_events_are_counted_and_forgotten_without_a_scrape():
    fleet, timing = Fleet(), Timing(queued=0.25)
    metrics = observed(fleet=fleet)
    unused = sys.getrefcount(timing)
    for _ in range(96):
        fleet.observers.tell(Finished("mnist", "1.0", timing))
    assert sys.getrefcount(timing) == unused + 96
    while sys.getrefcount(timing) > unused:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(0.001)
    assert 'queue_time_seconds_count{model_name="mnist",model_version="1.0"} 96.0' in lines(
        metrics, "queue_time_seconds_count"
    )


def counted(metrics):
    families = text_string_to_metric_families(exposition(metrics).decode())
    return {
        (sample.name, *sample.labels.items()): sample.value
        for family in families
        for sample in family.samples
        if "mnist" in sample.labels.values() or family.name in ("QueueTime", "Requests5XX")
    }


def test_requests_of_unknown_models_share_one_series():
    events = [Responded("v2", f"guess-{i}", "", 404, 0.001) for i in range(20)]
    events.append(Responded("v2", "mnist", "17", 404, 0.001))
    assert lines(observed(*events), "requests_total") == [
        'requests_total{model_name="",model_version="",protocol="v2",code="404"} 21.0'
    ]


def come_and_gone(model, version):
    """The events of a version from its first worker to its end."""
    dimensions = (("ModelName", model), ("Level", "Model"))
    return (
        StateChanged(model, version, "READY"),
        Accepted(model),
        Accepted(model, version),
        Finished(model, version, TIMING),
        Responded("v1", model, version, 200, 0.8, timing=TIMING),
        Responded("v1", model, "", 404, 0.1),
        Measured("HandlerTime", "gauge", "ms", dimensions, 2.5),
        StateChanged(model, version, "UNLOADING"),
        WorkerChanged(model, version, 9000, "STOPPED"),
    )


def remove_of_older_clients(histogram, *values):
    del histogram._metrics[values]


async def test_versions_that_left_long_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(Histogram, "remove", remove_of_older_clients)
    names = [
        name
        for number in range(30)
        # The last one is loaded again, and what it replaces leaves.
        for name in (("mnist", f"2.{number}"), (f"m{number}", "1.0"), ("mnist", "1.0"))
    ]
    text = exposition(observed(*chain.from_iterable(starmap(come_and_gone, names)))).decode()
    for shown in ('"2.29"', '"m29"', '"mnist",model_version="1.0"', 'ModelName="mnist"'):
        assert shown in text
    for forgotten in ("2.10", "m10"):
        assert f'"{forgotten}"' not in text
    answers = 'requests_total{model_name="mnist",model_version="1.0",protocol="v1",code="200"} 30'
    assert answers in text
    assert 'request_predict_seconds_count{model_name="mnist"} 60.0' in text  # of all versions


def test_kserve_histograms_are_fed_and_shown():
    name = "request_predict_seconds_count"
    before = lines(observed(), f'{name}{{model_name="kserve-histogram"}}')
    failed = Finished("kserve-histogram", "1.0", TIMING, "HandlerError")
    metrics = observed(Finished("kserve-histogram", "1.0", TIMING), failed)
    assert before == []
    assert 'request_predict_seconds_count{model_name="kserve-histogram"} 1.0' in lines(
        metrics, name
    )
    assert {
        "request_preprocess_seconds",
        "request_predict_seconds",
        "request_explain_seconds",
        "request_postprocess_seconds",
    } <= types(exposition(metrics).decode()).keys()


def test_labels_of_handlers_that_cannot_be_encoded_hide_nothing_and_stay_apart():
    files = ["\udcfe", "\udcff"]
    events = [Measured("Decode", "gauge", "\udcff", (("File", file),), 1.0) for file in files]
    metrics = observed(*LIGHT_LOAD, *events, detect=True)
    assert [line.split(",")[0] for line in lines(metrics, "Decode")] == [
        'Decode{File="&#56574;"',
        'Decode{File="&#56575;"',
    ]
    assert "queue_depth" in types(exposition(metrics).decode())


def test_names_filter_own_and_foreign_families():
    metrics = observed(*LIGHT_LOAD)
    text = exposition(metrics, ["QueueTime", "process_open_fds", "batch_rows_count"]).decode()
    assert types(text) == {
        "QueueTime": "gauge",
        "process_open_fds": "gauge",
        "batch_rows": "histogram",
    }
    assert exposition(metrics, ["nothing_of_that_name"]) == b""


def test_requests_can_pass_a_scrape_between_families():
    assert len(list(observed(*LIGHT_LOAD).pieces())) > 20


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("log", set()),
        (
            "legacy",
            {
                "ts_inference_requests_total",
                "ts_inference_latency_microseconds",
                "ts_queue_latency_microseconds",
            },
        ),
        ("prometheus", TORCHSERVE.keys() | set(GPU)),
    ],
)
def test_mode_decides_on_torchserve_families_alone(mode, shown):
    names = types(exposition(observed(*LIGHT_LOAD, mode=mode)).decode()).keys()
    assert names & (TORCHSERVE.keys() | set(GPU)) == shown
    assert {"queue_depth", "requests_total", "request_predict_seconds"} <= names


def test_system_metrics_can_be_switched_off():
    names = types(exposition(observed(disable_system=True)).decode()).keys()
    assert "CPUUtilization" not in names
    assert "QueueTime" in names


def test_a_machine_that_cannot_be_measured_does_not_hide_the_rest(monkeypatch, caplog):
    def broken(path):
        raise PermissionError(path)

    metrics = observed(*LIGHT_LOAD)
    monkeypatch.setattr("psutil.disk_usage", broken)
    names = types(exposition(metrics).decode()).keys()
    assert "DiskUsage" not in names
    assert {"QueueTime", "queue_depth"} <= names
    assert "metrics: host cannot be measured" in caplog.text


def test_a_scrape_does_not_import_torch():
    script = (
        "import sys; sys.argv = ['x']; from tests.metrics.observed import exposition, observed;"
        "assert b'queue_depth' in exposition(observed()); assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root, timeout=60)


async def test_an_event_costs_microseconds():
    fleet = Fleet()
    observed(*LIGHT_LOAD, fleet=fleet)
    rounds = 500
    costs = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            for event in LIGHT_LOAD:
                fleet.observers.tell(event)
        costs.append((time.perf_counter() - start) / rounds / len(LIGHT_LOAD))
    assert min(costs) < 50e-6  # ten times what a quiet machine needs


def test_handlers_numbers_are_counted_when_they_have_become_many(caplog):
    fleet = Fleet()
    observed(fleet=fleet)
    unlisted = Measured("Unlisted", "gauge", "ms", (("Level", "Model"),), 1.0)
    for _ in range(95):
        fleet.observers.tell(unlisted)
    assert not caplog.text
    fleet.observers.tell(unlisted)
    assert "Unlisted" in caplog.text
