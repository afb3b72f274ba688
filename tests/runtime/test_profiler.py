import json
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kserve_torch.handler.base import BaseHandler
from kserve_torch.messages import Request, Verb
from kserve_torch.runtime import profiler
from kserve_torch.runtime.context import Context
from kserve_torch.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl


@pytest.mark.parametrize(
    ("value", "on"),
    [("true", True), ("1", True), ("yes", True), ("false", False), ("False", False), ("0", False)],
)
def test_the_switch(monkeypatch, value, on):
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", value)
    assert profiler.enabled() is on


def test_off_without_the_switch(monkeypatch):
    monkeypatch.delenv("ENABLE_TORCH_PROFILER", raising=False)
    assert not profiler.enabled()


class Doubler(BaseHandler):
    def initialize(self, context):
        self.device = torch.device("cpu")
        self.model = lambda tensor: tensor * 2
        self.manifest = context.manifest

    def get_insights(self, tensor_data, _, target=0):
        return [["explained"]] * len(tensor_data)

    def describe_handle(self):
        return {"a": 1}


@pytest.fixture
def ask(monkeypatch, tmp_path):
    monkeypatch.setenv("ENABLE_TORCH_PROFILER", "true")
    monkeypatch.setattr(profiler, "TRACES", tmp_path)
    manifest = {"model": {"modelName": "doubler"}}
    metrics = MetricsCacheYamlImpl(model_name="doubler")
    context = Context("doubler", str(tmp_path), manifest, 1, None, "0.12.0", metrics=metrics)

    def ask(handler=None, verb=Verb.PREDICT):
        handler = handler or Doubler()
        handler.initialize(context)
        context.begin([Request(id="r", model="doubler", rows=[[1.0]], verb=verb)])
        return handler.handle([[1.0]], context)

    return ask


def names(trace):
    return {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}


def test_a_trace_per_call_and_a_table_in_the_log(ask, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert ask() == [[2.0]]
    (trace,) = (tmp_path / "doubler").iterdir()
    assert trace.name.endswith(".pt.trace.json")
    assert {"preprocess", "inference", "postprocess"} <= names(trace)
    assert "Self CPU" in caplog.text


def test_a_handlers_unit_test_whose_context_has_no_name(ask, tmp_path):
    class Nameless:
        manifest = None
        metrics = MetricsCacheYamlImpl(model_name="doubler")

        def get_request_header(self, index, key):
            return False

    handler = Doubler()
    handler.initialize(Nameless)
    assert handler.handle([[1.0]], Nameless()) == [[2.0]]
    assert [path.name.endswith(".pt.trace.json") for path in tmp_path.iterdir()] == [True]


def test_explanations_are_profiled_too(ask, tmp_path):
    assert ask(verb=Verb.EXPLAIN) == [["explained"]]
    (trace,) = (tmp_path / "doubler").iterdir()
    assert {"preprocess", "explain"} <= names(trace)


def test_describe_is_not_profiled(ask, tmp_path):
    assert ask(verb=Verb.DESCRIBE) == [{"a": 1}]
    assert not (tmp_path / "doubler").exists()


def test_the_handlers_own_arguments(ask, tmp_path):
    seen = []
    handler = Doubler()
    handler.profiler_args = {
        "activities": [torch.profiler.ProfilerActivity.CPU],
        "on_trace_ready": seen.append,
    }
    ask(handler)
    assert len(seen) == 1
    assert not (tmp_path / "doubler").exists()
    assert set(handler.profiler_args) == {"activities", "on_trace_ready"}


def test_one_profile_at_a_time():
    """Two at once end the process with a segmentation fault."""
    inside, overlaps = [], []

    def work(name):
        for _ in range(3):
            with profiler.profile(name, {"on_trace_ready": lambda _: inside.remove(name)}):
                inside.append(name)
                overlaps.append(len(inside))
                torch.ones(2).sum()

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(work, "abcd"))
    assert overlaps == [1] * 12


def test_a_model_name_cannot_leave_the_folder(ask, tmp_path):
    with profiler.profile("../../escape", {}):
        pass
    assert (tmp_path / "escape").is_dir()
