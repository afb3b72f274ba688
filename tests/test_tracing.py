"""Spans of a real server, in the hands of a collector."""

import http.server
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from kserve_torch import tracing as module
from kserve_torch.events import Responded
from kserve_torch.grpc.protos import inference_pb2 as pb
from kserve_torch.messages import Timing
from kserve_torch.tracing import Tracing, tracing

from .forks import Forks
from .hosts import hosting
from .makers import make_archive
from .server import Server

HANDLER = """
def handle(data, context):
    return [1 // row["n"] for row in data] if data else None
"""
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLED = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
NONSENSE = {"traceparent": "0" * 600, "baggage": "%=;," * 9}


class Collector:
    """Takes spans over OTLP, as a real one does."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.url = ""

    @property
    def services(self) -> set[str]:
        """Who says that it has sent them."""
        return {
            attribute.value.string_value
            for request in self.requests
            for spans in request.resource_spans
            for attribute in spans.resource.attributes
            if attribute.key == "service.name"
        }

    @property
    def spans(self) -> list[Span]:
        """What has come, in the order of the beginnings."""
        found = [
            span
            for request in self.requests
            for spans in request.resource_spans
            for scope in spans.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano))

    @contextmanager
    def over_http(self) -> Iterator["Collector"]:
        collector = self

        class Takes(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        with hosting(Takes) as self.url:
            yield self

    @contextmanager
    def over_grpc(self) -> Iterator["Collector"]:
        server = grpc.server(ThreadPoolExecutor(1))
        add_TraceServiceServicer_to_server(self, server)
        self.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield self
        finally:
            server.stop(None).wait()

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self.requests.append(request)
        return ExportTraceServiceResponse()


def attributes(span: Span) -> dict[str, Any]:
    values = {pair.key: pair.value for pair in span.attributes}
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values.items()}


def test_spans_of_each_protocol(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": HANDLER})
    native = pb.PredictionsRequest(model_name="m", input={"n": b"1"})
    with Collector().over_http() as collector:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with Server(tmp_path, env=environment) as server, server.client() as client:
            client.post("/v1/models/m:predict", json={"instances": [{"n": 1}]}, headers=CALLED)
            client.post("/v1/models/m:predict", json={"instances": [{"n": 0}]}, headers=CALLED)
            client.post("/v1/models/m:predict", content="{", headers=CALLED)
            client.post("/v1/models/nobody:predict", json={"instances": []}, headers=NONSENSE)
            with grpc.insecure_channel(f"127.0.0.1:{server.ports['native_grpc']}") as channel:
                call = channel.unary_unary(
                    "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions",
                    pb.PredictionsRequest.SerializeToString,
                )
                with pytest.raises(grpc.RpcError):  # its n is text
                    call(native, metadata=list(CALLED.items()), timeout=30)
        assert "opentelemetry" not in server.log

    spans = collector.spans
    assert [span.name for span in spans] == [
        *("v1 m", "queue", "handler"),
        *("v1 m", "queue", "handler"),
        *("v1 m", "v1"),
        *("grpc m", "queue", "handler"),
    ]
    answered, queue, handler, raised, _, _, malformed, nobody, native_call, *_ = spans
    assert {span.trace_id.hex() for span in spans if span is not nobody} == {TRACE}
    above = [span.parent_span_id.hex() for span in spans]
    of_each = [[CALLER, *[span.span_id.hex()] * 2] for span in (answered, raised, native_call)]
    assert above == [*of_each[0], *of_each[1], CALLER, "", *of_each[2]]
    assert nobody.trace_id.hex() != TRACE

    assert attributes(answered) | {"request.id": "?"} == {
        "http.response.status_code": 200,
        "model.name": "m",
        "model.version": "1.0",
        "request.id": "?",
        "request.rows": 1,
    }
    assert attributes(handler) == {"batch.rows": 1}
    assert answered.start_time_unix_nano <= queue.start_time_unix_nano
    assert queue.end_time_unix_nano == handler.start_time_unix_nano
    assert handler.end_time_unix_nano <= answered.end_time_unix_nano
    assert (answered.status.code, raised.status.code) == (0, 2)
    failures = [attributes(span).get("error.type") for span in (raised, malformed, nobody)]
    assert failures == ["HandlerError", "InvalidInput", "ModelNotFound"]
    assert malformed.status.code == 0  # who sends nonsense is no failure of the server
    assert attributes(native_call)["error.type"] == "HandlerError"
    assert collector.services == {"kserve-torch"}


def test_the_sdks_variables_count(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": HANDLER})
    with Collector().over_http() as collector:
        environment = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=mine",
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        }
        with Server(tmp_path, env=environment) as server, server.client() as client:
            for headers in ({}, CALLED):
                body = {"instances": [{"n": 1}]}
                assert client.post("/v1/models/m:predict", json=body, headers=headers).is_success
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert collector.services == {"mine"}


def test_spans_over_grpc(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": HANDLER})
    with Collector().over_grpc() as collector:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_SERVICE_NAME": "named",
        }
        with Server(tmp_path, env=environment) as server, server.client() as client:
            client.post("/v1/models/m:predict", json={"instances": [{"n": 1}]}, headers=CALLED)
        assert "opentelemetry" not in server.log
    assert [span.name for span in collector.spans] == ["v1 m", "queue", "handler"]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert collector.services == {"named"}


@pytest.mark.parametrize(
    ("address", "protocol"),
    [
        ("http://otel-collector:4317", "grpc"),  # KServe's default for `tracing: {}`
        ("collector:4317/", "grpc"),
        ("http://collector:4318", "http/protobuf"),
        ("http://collector:14317", "http/protobuf"),
        ("http://collector:4317/v1/traces", "http/protobuf"),  # gRPC has no paths
    ],
)
def test_the_port_decides_on_the_protocol_that_nobody_named(
    monkeypatch: pytest.MonkeyPatch, address: str, protocol: str
) -> None:
    packages: list[str] = []
    monkeypatch.setattr(module, "_tracing", lambda _, package: packages.append(package))
    tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_TRACES_EXPORTER": ""})
    assert packages == [module._EXPORTERS[protocol]]


def test_spans_are_as_long_as_what_they_stand_for() -> None:
    provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    timing = Timing(queued=1.0, handler=0.5, batch_rows=1, began=time.monotonic() - 0.5)
    Tracing(provider)(
        Responded(protocol="v1", model="m", version="1", status=200, seconds=5.0, timing=timing)
    )
    queue, handler, answer = memory.get_finished_spans()
    spans = [(span.start_time or 0, span.end_time or 0) for span in (queue, handler, answer)]
    assert [round((end - start) / 1e9, 6) for start, end in spans] == [1.0, 0.5, 5.0]
    assert queue.end_time == handler.start_time
    assert time.time_ns() - spans[-1][0] >= 5e9
    assert answer.kind is SpanKind.SERVER


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_is_not_there_harms_nobody(tmp_path: Path, protocol: str) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": HANDLER})
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
    }
    with Server(tmp_path, env=environment) as server, server.client() as client:
        body = {"instances": [{"n": 1}]}
        assert client.post("/v1/models/m:predict", json=body).json() == {"predictions": [1]}
        assert server.stop() == 0


async def test_spans_that_cannot_leave_do_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, waited = threading.Event(), []

    class Stuck(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            waited.append(over.wait(20))
            return True

    monkeypatch.setattr(module, "LAST_SECONDS", 0.01)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Stuck())
    try:
        await Tracing(provider).close()
        assert not waited
    finally:
        over.set()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there", "OTEL_SDK_DISABLED": "True"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_who_asks_for_no_traces_gets_none(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert tracing(environ) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OTEL_PROPAGATORS": "xyz"}, "no traces are sent: ValueError: Propagator xyz not found"),
        ({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "x"}, "no traces are sent: ValueError: OTEL_SPAN_"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "no traces are sent: protocol http/json,"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "no traces are sent: exporter console, only otlp"),
        (
            {"OTEL_TRACES_SAMPLER": "xyz", "OTEL_EXPORTER_OTLP_TIMEOUT": "abc"},
            "Invalid timeout value 'abc'",
        ),
    ],
)
def test_variables_that_make_no_sense_keep_no_server_from_starting(
    forks: Forks, environ: dict[str, str], words: str
) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **environ}
    code = (
        "import logging, os, threading\n"
        "from kserve_torch.tracing import tracing\n"
        "logging.basicConfig()\n"
        f"os.environ.update({environ})\n"
        "made = tracing(os.environ)\n"
        "print(made is None, threading.active_count() == 1)\n"
    )
    printed = forks.run(code)
    assert words in printed
    assert "Traceback" not in printed
    none = words.startswith("no traces")
    assert f"{none} {none}" in printed


def test_without_the_packages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(module._EXPORTERS, "http/protobuf", "nothing.of.this.name")
    assert tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://there"}) is None
    assert "no traces are sent: the packages of the extra 'tracing'" in caplog.text
