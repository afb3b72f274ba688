import json
import logging
import struct
import sys

import pytest
import torch

from kserve_torch.errors import LoadFailed
from kserve_torch.messages import Request
from kserve_torch.runtime.context import Context
from kserve_torch.ts.metrics.metrics_store import MetricsStore
from kserve_torch.ts.model_loader import ModelLoaderFactory
from kserve_torch.ts.model_service.model_service import SingleNodeService
from kserve_torch.ts.protocol import otf_message_handler as otf
from kserve_torch.ts.service import Service, emit_metrics
from kserve_torch.ts.torch_handler.base_handler import BaseHandler
from kserve_torch.ts.torch_handler.unit_tests.test_utils.mock_context import MockContext

BATCH = [
    {
        "requestId": b"r1",
        "headers": [{"name": b"Accept", "value": b"x"}],
        "parameters": [{"name": "body", "value": 1, "contentType": "text/plain"}],
    },
    {"requestId": b"r2", "parameters": [{"name": "data", "value": 2}]},
]


def test_a_service_calls_its_entry_point_with_rows_and_context(tmp_path):
    def handle(data, context):
        assert context.get_request_header(0, "accept") == "x"
        assert context.get_request_header(0, "body") == {"content-type": "text/plain"}
        return [data, context.request_ids]

    service = Service(
        "m", str(tmp_path), None, handle, None, 2, metrics_cache=MetricsStore({}, "m")
    )
    assert service.predict(BATCH) == [[{"body": 1}, {"data": 2}], {0: "r1", 1: "r2"}]
    assert [metric.name for metric in service.context.metrics.store] == ["PredictionTime"]
    with pytest.raises(ValueError, match="invalid"):
        service.predict(None)


def test_the_yaml_that_the_manifest_names(tmp_path):
    (tmp_path / "c.yaml").write_text("handler: {x: 1}")
    service = Service("m", str(tmp_path), {"model": {"configFile": "c.yaml"}}, print, None, 1)
    assert service.context.model_yaml_config == {"handler": {"x": 1}}


def test_emit_metrics(caplog):
    caplog.set_level(logging.INFO)
    store = MetricsStore("r", "m")
    store.add_counter("n", 1)
    emit_metrics(store.store)
    emit_metrics(None)
    assert "[METRICS]n.Count:1" in caplog.text


def read_frame(frame):
    """Code, message and rows of a response frame, as TorchServe's front end reads it."""

    def integer():
        nonlocal frame
        (value,), frame = struct.unpack("!i", frame[:4]), frame[4:]
        return value

    def text():
        nonlocal frame
        size = integer()
        value, frame = frame[:size], frame[size:]
        return value.decode()

    code, message, rows = integer(), text(), []
    while (size := integer()) != -1:
        name, frame = frame[:size].decode(), frame[size:]
        kind, status, phrase = text(), integer(), text()
        headers = {text(): text() for _ in range(integer())}
        rows.append((name, kind, status, phrase, headers, text()))
    assert frame == b""
    return code, message, rows


def test_response_frames():
    context = Context("m", "/x", None, 1, None, "0.12.0")
    context.begin([Request(id="a", model="m", rows=[{}]), Request(id="b", model="m", rows=[{}])])
    context.set_response_content_type(0, "text/plain")
    context.set_response_status(201, "Made", 0)
    frame = otf.create_predict_response(["é", {"x": 1}], context.request_ids, "ok", 200, context)
    assert read_frame(frame) == (
        200,
        "ok",
        [
            ("a", "text/plain", 201, "Made", {"content-type": "text/plain"}, "é"),
            ("b", "", 200, "", {}, '{\n  "x": 1\n}'),
        ],
    )
    assert read_frame(otf.create_predict_response(None, {0: "a"}, "bad", 507)) == (
        507,
        "bad",
        [("a", "", 507, "", {}, "error")],
    )
    assert read_frame(otf.create_load_model_response(200, "loaded")) == (200, "loaded", [])
    assert b"PK" in otf.create_predict_response([torch.ones(1)], {0: "a"}, "ok", 200)
    with pytest.raises(RuntimeError, match="no socket"):
        otf.retrieve_msg(None)


@pytest.fixture
def clean_imports(monkeypatch):
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.startswith("loader_"):
            del sys.modules[name]


CLASS = """
class Handler:
    def initialize(self, context):
        self.name = context.model_name

    def handle(self, data, context):
        return [self.name] * len(data)
"""
FUNCTION = """
def run(data, context):
    return None if data is None else ["function"] * len(data)
"""


@pytest.mark.usefixtures("clean_imports")
def test_the_loader_finds_classes_functions_and_stock_handlers(tmp_path):
    (tmp_path / "loader_class.py").write_text(CLASS)
    (tmp_path / "loader_function.py").write_text(FUNCTION)
    loader = ModelLoaderFactory.get_model_loader()

    def load(handler, **options):
        return loader.load("m", str(tmp_path), handler, None, 1, **options)

    assert load("loader_class.py").predict(BATCH) == ["m", "m"]
    assert load("loader_function:run").predict(BATCH) == ["function"] * 2
    envelope = load("loader_function:run", envelope="body")
    assert envelope.predict(BATCH) == ["function"] * 2
    with pytest.raises(LoadFailed, match="No model weights"):
        load("base_handler")


@pytest.mark.usefixtures("clean_imports")
def test_the_loader_needs_no_more_than_the_handler(tmp_path):
    class Nowhere:
        def __getattr__(self, name):
            return lambda *args, **kwargs: None

    (tmp_path / "loader_least.py").write_text(CLASS)
    loader = ModelLoaderFactory.get_model_loader()
    load = {"model_name": "m", "model_dir": str(tmp_path), "handler": "loader_least.py"}
    assert loader.load(**load).context.system_properties["gpu_id"] is None
    service = loader.load(**load, gpu_id=0, metrics_cache=Nowhere())
    processors, rows, ids = service.retrieve_data_for_inference(BATCH)
    service.context.request_processor, service.context.request_ids = processors, ids
    assert service._entry_point(rows, service.context) == ["m", "m"]


@pytest.mark.usefixtures("clean_imports")
def test_the_loader_names_what_is_wrong(tmp_path):
    (tmp_path / "loader_two.py").write_text("class A: pass\nclass B: pass\n")
    (tmp_path / "loader_bare.py").write_text("class A: pass\n")
    (tmp_path / "loader_broken.py").write_text("import loader_absent\n")
    loader = ModelLoaderFactory.get_model_loader()
    with pytest.raises(LoadFailed, match=r"loader_two.py: .* got A, B"):
        loader.load("m", str(tmp_path), "loader_two", None, 1)
    with pytest.raises(LoadFailed, match="A has no method 'handle'"):
        loader.load("m", str(tmp_path), "loader_bare", None, 1)
    with pytest.raises(ImportError, match="loader_absent"):
        loader.load("m", str(tmp_path), "loader_broken", None, 1)


class Adder(SingleNodeService):
    def _inference(self, data):
        return sum(data[0])


def test_model_service_answers_its_signatures_first_input(tmp_path):
    signature = {"input_type": "application/json", "inputs": [{"data_name": "numbers"}]}
    (tmp_path / "signature.json").write_text(json.dumps(signature))
    manifest = {"Model": {"Signature": "signature.json"}}
    context = Context("m", str(tmp_path), manifest, 1, None, "0.12.0")
    service = Adder("m", str(tmp_path), manifest)
    service.initialize(context)
    assert service.signature() == signature
    assert service.ping() == "healthy"
    assert service.handle([{"numbers": [1, 2]}], context) == [3]
    assert service.handle([{"body": bytearray(b"[1, 2]")}], context) == [3]
    (tmp_path / "signature.json").unlink()
    with pytest.raises(ValueError, match=r"signature\.json is not in the archive"):
        service.initialize(context)


MODEL = """
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x.argmax(1)
"""


@pytest.mark.usefixtures("clean_imports")
def test_a_handlers_old_unit_test_with_mock_context(tmp_path):
    (tmp_path / "loader_model.py").write_text(MODEL)
    sys.path.insert(0, str(tmp_path))
    context = MockContext(model_pt_file=None, model_dir=str(tmp_path), model_file="loader_model.py")
    handler = BaseHandler()
    handler.initialize(context)
    assert handler.handle([[1.0, 2.0], [4.0, 3.0]], context) == [1, 0]
    assert context.get_request_header(0, "explain") == "False"
    context.explain = True
    assert context.get_request_header(0, "explain") == "True"
    assert context.get_request_header(0, "describe") is False
    assert [metric.name for metric in context.metrics.store] == ["HandlerTime"]


def test_mock_context_with_a_yaml(tmp_path):
    (tmp_path / "c.yaml").write_text("handler: {x: 1}")
    for file in ("c.yaml", tmp_path / "c.yaml", str(tmp_path / "c.yaml")):
        context = MockContext(model_dir=str(tmp_path), model_yaml_config_file=file)
        assert context.model_yaml_config == {"handler": {"x": 1}}
    assert context.manifest["model"]["serializedFile"] == "model.pt"
