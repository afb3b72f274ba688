"""Transcripts of TorchServe 0.12's inference API, and what is done better on purpose."""

import asyncio
import io
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kserve_torch.codec import native as codec
from kserve_torch.engine import emissions
from kserve_torch.engine.worker import WorkerState
from kserve_torch.errors import HandlerError, RequestTimeout
from kserve_torch.events import Accepted, Event, Finished, Responded
from kserve_torch.http.call import Answer
from kserve_torch.http.native import Native
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.tokens import Tokens

from ..threads import Readers
from .conftest import call, routed

MULTIPART = (
    b'--B\r\nContent-Disposition: form-data; name="data"; filename="a.png"\r\n'
    b"Content-Type: image/png\r\n\r\nPNG\r\n"
    b'--B\r\nContent-Disposition: form-data; name="t"\r\n\r\n7\r\n--B--\r\n'
)


@pytest.fixture
def native(registry: Registry, settings: Settings) -> Native:
    return Native(registry, settings, tokens=None)


async def ask(
    native: Native, method: str, target: str, body: bytes = b"", **headers: str
) -> Answer:
    return await routed(native.route, call(method, target, body, **headers))


def value(answer: Answer) -> Any:
    assert isinstance(answer.body, bytes)
    return json.loads(answer.body)


def header(answer: Answer, name: str) -> str | None:
    return dict(answer.headers).get(name)


# --- keys ---


@pytest.mark.parametrize(
    "path", ["/predictions/echo", "/explanations/echo", "/models/echo/invoke", "/ping"]
)
async def test_keys(registry: Registry, settings: Settings, tmp_path: Path, path: str) -> None:
    native = Native(registry, settings, Tokens(tmp_path, lifetime=60))
    keys = json.loads((tmp_path / "key_file.json").read_text())
    opened_by = [
        name
        for name in keys
        if (await ask(native, "POST", path, authorization=f"Bearer {keys[name]['key']}")).status
        == 200
    ]
    assert opened_by == ["inference"]
    refused = await ask(native, "POST", path)
    assert (refused.status, value(refused)["type"]) == (400, "InvalidKeyException")


# --- ping ---


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("path", ["/ping", "/ping/", "/ping/x"])
async def test_ping(native: Native, method: str, path: str) -> None:
    answer = await ask(native, method, path)
    assert (answer.status, answer.body) == (200, b'{\n  "status": "Healthy"\n}\n')


async def test_ping_counts_the_workers(
    native: Native, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in registry.find("echo").workers:
        monkeypatch.setattr(worker, "state", WorkerState.LOADING)
    answer = await ask(native, "GET", "/ping")
    assert (answer.status, value(answer)) == (500, {"status": "Unhealthy"})


async def test_ping_without_models_is_healthy(settings: Settings) -> None:
    registry = Registry(settings)
    answer = await ask(Native(registry, settings, None), "GET", "/ping")
    assert answer.status == 200
    registry.draining = True
    assert (await ask(Native(registry, settings, None), "GET", "/ping")).status == 500
    await registry.close()


# --- which row ---

ROWS = [
    (b"", {}, {"body": "bytearray(b'')"}),
    (b"zz", {}, {"body": "bytearray(b'zz')"}),
    (b'{"a":1}', {"content_type": "application/json"}, {"body": "{'a': 1}"}),
    (b'{"a":1}', {"content_type": "application/json; charset=utf-8"}, {"body": "{'a': 1}"}),
    (b'{"a":', {"content_type": "application/json"}, {"body": "bytearray(b'{\"a\":')"}),
    (b"x", {"content_type": "text/plain"}, {"body": "'x'"}),
    (
        b"a=1&b=2&a=3",
        {"content_type": "application/x-www-form-urlencoded"},
        {"a": "bytearray(b'3')", "b": "bytearray(b'2')"},
    ),
    (
        MULTIPART,
        {"content_type": "multipart/form-data; boundary=B"},
        {"data": "bytearray(b'PNG')", "t": "bytearray(b'7')"},
    ),
]


@pytest.mark.parametrize(("body", "headers", "row"), ROWS)
async def test_rows(
    native: Native, body: bytes, headers: dict[str, str], row: dict[str, str]
) -> None:
    answer = await ask(native, "POST", "/predictions/echo", body, **headers)
    assert (answer.status, value(answer)) == (200, row)


async def test_rows_stay_bytes_when_decoding_is_off(registry: Registry, settings: Settings) -> None:
    raw = Native(registry, replace(settings, decode_input_request=False), None)
    answer = await ask(raw, "POST", "/predictions/echo", b"{}", content_type="application/json")
    assert value(answer) == {"body": "bytearray(b'{}')"}


async def test_damaged_form_is_the_clients_fault(native: Native) -> None:
    kind = "multipart/form-data; boundary=B"
    answer = await ask(native, "POST", "/predictions/echo", MULTIPART[:-20], content_type=kind)
    assert (answer.status, value(answer)["type"]) == (400, "BadRequestException")
    assert answer.close


# --- which model ---


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    "path",
    [
        "/predictions/echo",
        "/predictions/echo/",
        "/predictions/echo/1.0",
        "/predictions/echo/1.0/x/y",
        "/explanations/echo",
        "/explanations/echo/1.0",
        "/invocations",
        "/invocations?model_name=echo",
        "/models/echo/invoke",
        "/echo/predict",
        "/echo/1.0/predict",
    ],
)
async def test_every_path_takes_every_method(native: Native, method: str, path: str) -> None:
    assert (await ask(native, method, path, b"x")).status == 200


async def test_query_parameters_are_fields_on_the_older_paths_only(native: Native) -> None:
    row = {"model_name": "bytearray(b'echo')", "a": "bytearray(b'b')", "body": "bytearray(b'')"}
    answer = await ask(native, "GET", "/invocations?model_name=echo&a=b")
    assert value(answer) == row
    for path in ("/models/echo/invoke", "/echo/predict", "/echo/1.0/predict"):
        answer = await ask(native, "POST", path + "?z=1", b"zz")
        assert value(answer) == {"z": "bytearray(b'1')", "body": "bytearray(b'zz')"}
    answer = await ask(native, "POST", "/predictions/echo?z=1", b"zz")
    assert value(answer) == {"body": "bytearray(b'zz')"}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/x-www-form-urlencoded; charset=utf-8", b"a=b&model_name=echo"),
        (
            "multipart/form-data; boundary=B",
            b'--B\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n'
            b'--B\r\nContent-Disposition: form-data; name="model_name"\r\n\r\necho\r\n--B--\r\n',
        ),
    ],
)
async def test_a_form_may_name_the_model_of_invocations(
    native: Native, registry: Registry, content_type: str, body: bytes
) -> None:
    await registry.register("echo_2.0.mar", name="other")
    registry.find("other").loaded_at_startup = True
    answer = await ask(native, "POST", "/invocations", body, content_type=content_type)
    assert value(answer) == {"a": "bytearray(b'b')", "model_name": "bytearray(b'echo')"}
    nameless = body.replace(b"model_name", b"other_name")
    answer = await ask(native, "POST", "/invocations", nameless, content_type=content_type)
    assert value(answer)["message"] == "Parameter model_name is required."


async def test_invocations_of_one_start_up_model_need_no_name(
    native: Native, registry: Registry
) -> None:
    await registry.register("echo_2.0.mar", name="other")
    assert (await ask(native, "POST", "/invocations", b"x")).status == 200
    registry.find("other").loaded_at_startup = True
    answer = await ask(native, "POST", "/invocations", b"x")
    assert (answer.status, value(answer)) == (
        400,
        {
            "code": 400,
            "type": "BadRequestException",
            "message": "Parameter model_name is required.",
        },
    )


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        ("/predictions/nope", "ModelNotFoundException", "Model not found: nope"),
        ("/predictions//echo", "ModelNotFoundException", "Model not found: "),
        ("/invocations?model_name=nope", "ModelNotFoundException", "Model not found: nope"),
        ("/nope/predict", "ModelNotFoundException", "Model not found: nope"),
        (
            "/predictions/echo/9.9",
            "ModelVersionNotFoundException",
            "Model version: 9.9 does not exist for model: echo",
        ),
        (
            "/echo/7/predict",
            "ModelVersionNotFoundException",
            "Model version: 7 does not exist for model: echo",
        ),
    ],
)
async def test_unknown_model(native: Native, path: str, kind: str, message: str) -> None:
    answer = await ask(native, "POST", path)
    expected = {"code": 404, "type": kind, "message": message}
    assert (answer.status, list(value(answer).items())) == (404, list(expected.items()))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/nowhere",
        "/predictions",
        "/predictions/",
        "/explanations",
        "/invocations/x",
        "//ping",
        "/v1/models/predict",
        "/v2/models/echo",
        "/models/echo/predict",
        "/models",
        "/models/echo",
        "/a/b/c/predict",
        "/metrics",
    ],
)
async def test_paths_of_others(native: Native, path: str) -> None:
    assert await native.route(call("GET", path)) is None


# --- what the handler sees ---


async def seen(native: Native, path: str, **headers: str) -> dict[str, Any]:
    return dict(value(await ask(native, "PUT", path, b"zz", mode="headers", **headers)))


async def test_headers(native: Native) -> None:
    headers = await seen(native, "/predictions/echo/1.0/x/y", x_request_id="mine")
    assert headers["explain"] == "False"
    assert headers["url_path"] == "x/y"
    assert headers["x-request-id"] == "mine"
    assert headers["body"] == {"content-type": ""}
    assert (await seen(native, "/predictions/echo"))["url_path"] == ""


async def test_explanations_say_so(native: Native) -> None:
    headers = await seen(native, "/explanations/echo/1.0/a")
    assert (headers["explain"], headers["url_path"]) == ("True", "a")


async def test_form_fields_have_content_types(native: Native) -> None:
    answer = await ask(
        native,
        "POST",
        "/predictions/echo",
        MULTIPART,
        content_type="multipart/form-data; boundary=B",
        mode="headers",
    )
    assert value(answer)["data"] == {"content-type": "image/png"}
    assert value(answer)["t"] == {"content-type": ""}


# --- what the client sees ---


async def test_every_answer_has_a_fresh_id_and_is_not_cached(native: Native) -> None:
    answers = [
        await ask(native, "POST", path, x_request_id="mine")
        for path in ("/ping", "/predictions/echo", "/predictions/nope")
    ]
    for answer in answers:
        assert header(answer, "pragma") == "no-cache"
        assert header(answer, "cache-control") == ("no-cache; no-store, must-revalidate, private")
        assert header(answer, "expires") == "Thu, 01 Jan 1970 00:00:00 UTC"
    ids = [header(answer, "x-request-id") for answer in answers]
    assert len({str(uuid.UUID(id_)) for id_ in ids}) == 3
    assert [answer.close for answer in answers] == [False, False, True]


async def test_the_handlers_status_goes_out_with_its_own_body(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="status")
    assert (answer.status, answer.body) == (507, b"Invalid response")


async def test_the_handlers_headers_go_out(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="image")
    assert (answer.content_type, answer.body) == ("image/png", b"\x89PNG")
    assert header(answer, "x-own") == "1"


async def test_no_header_goes_out_twice(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="ours")
    assert [name for name, value in answer.headers if value == "1"] == ["x-own"]


@pytest.mark.parametrize(
    ("mode", "content_type"),
    [("text", "text/plain; charset=utf-8"), ("row", "application/json")],
)
async def test_content_types_that_nobody_set(native: Native, mode: str, content_type: str) -> None:
    answer = await ask(native, "POST", "/predictions/echo", b"1", mode=mode)
    assert answer.content_type == content_type


async def test_tensors_go_out_as_torch_saves_them(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="tensor")
    assert isinstance(answer.body, bytes)
    assert torch.load(io.BytesIO(answer.body)).tolist() == [1, 2]


async def test_json_is_printed_with_two_spaces(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", b"zz")
    assert answer.body == b'{\n  "body": "bytearray(b\'zz\')"\n}'


# --- errors ---


async def test_the_handler_raises(
    native: Native, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="raise")
    assert (answer.status, value(answer)["code"]) == (503, 503)
    assert value(answer)["type"] == "InternalServerException"
    assert "kserve_torch-" not in value(answer)["message"]
    assert "Traceback" not in value(answer)["message"]
    assert "broken in" in caplog.text
    assert str(header(answer, "x-request-id")) in caplog.text


async def test_the_handler_chooses_the_code(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="code")
    assert (answer.status, value(answer)) == (
        599,
        {"code": 599, "type": "InternalServerException", "message": "my text"},
    )


async def test_a_status_that_is_no_number_is_the_handlers_mistake(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="no status")
    assert (answer.status, value(answer)["code"]) == (503, 503)
    assert "'400'" in value(answer)["message"]


async def test_a_content_type_goes_out_as_text(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="no type")
    assert (answer.status, answer.content_type, answer.body) == (200, "5", b"text")


async def test_a_text_that_has_no_utf8_does_not_hide_the_code(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="half a pair")
    assert (answer.status, value(answer)["message"]) == (404, "?")


async def test_a_result_that_has_no_form(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="set")
    assert answer.status == 503
    assert value(answer)["message"].startswith("Unsupported model output data type")


async def test_an_answer_may_not_be_larger_than_the_limit(
    registry: Registry, settings: Settings
) -> None:
    small = Native(registry, replace(settings, max_response_size=5), None)
    answer = await ask(small, "POST", "/predictions/echo", b"zz")
    assert (answer.status, value(answer)["message"]) == (
        500,
        "the answer has 32 bytes, max_response_size is 5",
    )


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
async def test_deadline_that_is_none(native: Native, text: str) -> None:
    answer = await ask(native, "POST", "/predictions/echo", x_request_timeout_ms=text)
    assert answer.status == 400
    assert value(answer)["message"].startswith("x-request-timeout-ms: ")


async def test_without_workers(native: Native, registry: Registry) -> None:
    await registry.register("echo_2.0.mar", workers=0)
    answer = await ask(native, "POST", "/predictions/echo/2.0", b"x")
    assert (answer.status, value(answer)["type"]) == (503, "ServiceUnavailableException")


async def test_a_body_that_fails_the_decoder_is_told_of(
    native: Native, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []
    registry.observers.add(events.append, [Responded])
    monkeypatch.setattr(codec, "decode", None)
    answer = await ask(native, "POST", "/predictions/echo", b"x")
    await asyncio.sleep(0)
    assert [(event.status, event.error) for event in events] == [(answer.status, "TypeError")]


async def test_unexpected_errors_are_logged_once_and_not_told(
    native: Native, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.names = None  # type: ignore[method-assign,assignment]
    answer = await ask(native, "GET", "/ping")
    assert (answer.status, value(answer)["message"]) == (500, "Internal error: TypeError")
    assert [record.exc_info is not None for record in caplog.records] == [True]


# --- streaming ---


async def chunks(answer: Answer) -> list[bytes]:
    assert isinstance(answer.body, AsyncIterator)
    return [chunk async for chunk in answer.body]


async def test_a_streaming_handler(native: Native) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode="stream")
    assert (answer.status, header(answer, "ts_stream_next")) == (200, "true")
    assert await chunks(answer) == [b"a ", b"b ", b"end"]


async def test_a_client_that_does_not_read_on_is_no_success(
    native: Native, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emissions, "MOST_BYTES", 3000)
    monkeypatch.setattr(emissions, "PATIENCE_SECONDS", 0.1)
    told: asyncio.Queue[Event] = asyncio.Queue()
    registry.observers.add(told.put_nowait, [Responded])
    answer = await ask(native, "POST", "/predictions/echo", mode="long stream")
    event = await told.get()
    assert isinstance(event, Responded)
    assert (event.status, event.rows) == (499, 1)
    with pytest.raises(RequestTimeout, match="did not take"):
        await chunks(answer)
    assert told.empty()


@pytest.mark.parametrize(("mode", "status"), [("stream of an error", 422), ("201 at the end", 200)])
async def test_a_stream_has_an_end_if_it_began_as_an_error_or_does_not_end_as_one(
    native: Native, mode: str, status: int
) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode=mode)
    assert answer.status == status
    assert await chunks(answer) == [b"a ", b"end"]


@pytest.mark.parametrize("mode", ["broken stream", "400 at the end"])
async def test_a_stream_that_breaks_has_no_end(native: Native, mode: str) -> None:
    answer = await ask(native, "POST", "/predictions/echo", mode=mode)
    assert isinstance(answer.body, AsyncIterator)
    assert await anext(answer.body) == b"a "
    with pytest.raises(Exception, match="mid-stream"):
        await anext(answer.body)


async def test_a_stream_that_breaks_after_the_handlers_end_is_reported_once(
    native: Native, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    told: asyncio.Queue[Event] = asyncio.Queue()
    registry.observers.add(told.put_nowait, [Responded])
    answer = await ask(native, "POST", "/predictions/echo", mode="odd later")
    event = await told.get()  # the client has read nothing yet
    with pytest.raises(HandlerError):
        await chunks(answer)
    await asyncio.sleep(0.01)
    assert isinstance(event, Responded)
    assert (event.status, told.qsize()) == (200, 0)
    assert "Unsupported model output" in caplog.text


@pytest.mark.parametrize("mode", ["odd first", "odd later"])
async def test_a_part_of_a_stream_that_cannot_be_sent_is_reported(
    native: Native, registry: Registry, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []
    registry.observers.add(told.append, [Responded])
    answer = await ask(native, "POST", "/predictions/echo", mode=mode)
    if mode == "odd first":
        assert answer.status == 503
    else:
        with pytest.raises(HandlerError):
            await chunks(answer)
    for _ in range(5):  # the end of the cancelled call would be told only now
        await asyncio.sleep(0)
    (event,) = told
    assert isinstance(event, Responded)
    assert (event.status, event.error) == (503, "HandlerError")
    (record,) = caplog.records
    asked = header(answer, "x-request-id")
    said = f"echo 1.0 predict: request {asked} failed: Unsupported model output"
    assert record.getMessage().startswith(said)
    assert record.__dict__["fields"] == {"model": "echo", "id": asked}


async def test_a_client_that_leaves_at_once(native: Native, registry: Registry) -> None:
    asked = asyncio.ensure_future(ask(native, "POST", "/predictions/echo"))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await registry.find("echo").drain()
    assert registry.find("echo").statistics().inflight == 0


# --- envelopes ---

TENSOR = {"name": "x", "shape": [1], "datatype": "INT8", "data": [1]}
DATA = '{"name":"\'x\'","shape":"[1]","datatype":"\'INT8\'","data":"[1]"}'
SEEN = {"name": "x", "datatype": "BYTES", "data": [DATA], "shape": [1]}
ECHO = {"model_name": "echo", "model_version": "1.0"}
ENVELOPES = [
    ("body", {"a": 1}, {"a": "1"}),
    ("json", {"instances": [1, {"b64": "eno="}]}, {"predictions": ["1", "b'zz'"]}),
    ("kserve", {"instances": [[1], {"a": 2}]}, {"predictions": ["[1]", {"a": "2"}]}),
    ("kservev2", {"id": "7", "inputs": [TENSOR]}, {**ECHO, "id": "7", "outputs": [SEEN]}),
]


@pytest.mark.parametrize(("name", "body", "expected"), ENVELOPES)
async def test_envelopes(
    registry: Registry, settings: Settings, name: str, body: Any, expected: Any
) -> None:
    native = Native(registry, replace(settings, service_envelope=name), None)
    answer = await ask(
        native,
        "POST",
        "/predictions/echo",
        json.dumps(body).encode(),
        content_type="application/json",
    )
    assert (answer.status, value(answer)) == (200, expected)


async def test_empty_instances_never_reach_the_handler(
    registry: Registry, settings: Settings
) -> None:
    native = Native(registry, replace(settings, service_envelope="kserve"), None)
    answer = await ask(native, "POST", "/predictions/echo", b'{"instances": []}', mode="raise")
    assert (answer.status, value(answer)) == (200, {"predictions": []})


# --- descriptions ---


@pytest.mark.parametrize(("method", "path"), [("OPTIONS", "/"), ("GET", "/api-description")])
async def test_description(native: Native, method: str, path: str) -> None:
    here = value(await ask(native, method, path))
    assert here["openapi"] == "3.0.1"
    assert "/predictions/{model_name}/{model_version}" in here["paths"]
    assert "/models" not in here["paths"]
    # Generated clients in Go refuse answers with members that the document lacks.
    assert here.keys() <= here["components"]["schemas"]["Description"]["properties"].keys()
    there = await native.route(call(method, path, management=True))
    assert there is not None
    assert "set-default" in "".join(value(there)["paths"])


async def test_description_of_a_model(native: Native) -> None:
    answer = await ask(native, "OPTIONS", "/predictions/echo")
    assert next(iter(value(answer)["paths"])) == "/predictions/echo"
    assert (await ask(native, "OPTIONS", "/predictions/nope")).status == 404


# --- tokens ---


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/predictions/echo", "1.0"),
        ("/predictions/echo/2.0", "2.0"),
        ("/predictions/echo/7", ""),
        ("/predictions/nobody", ""),
    ],
)
async def test_refused_requests_are_booked_on_their_version_with_the_answers_id(
    native: Native, registry: Registry, path: str, version: str
) -> None:
    await registry.register("echo_2.0.mar")
    told: list[Any] = []
    registry.observers.add(told.append, [Responded])
    answer = await ask(native, "POST", path, x_request_timeout_ms="soon")
    await asyncio.sleep(0)
    assert answer.status in (400, 404)
    [event] = told
    assert (event.version, event.request_id) == (version, header(answer, "x-request-id"))


@pytest.mark.parametrize(("path", "asked"), [("", ""), ("/1.0", "1.0")])
async def test_metrics_tell_whether_a_version_was_named(
    native: Native, registry: Registry, path: str, asked: str
) -> None:
    events: list[Any] = []
    registry.observers.add(events.append, [Accepted, Finished])
    await ask(native, "POST", f"/predictions/echo{path}", b"x")
    assert [event.asked for event in events] == [asked] * 2


async def test_large_bodies_are_read_aside(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = Readers(monkeypatch)
    assert (await ask(native, "POST", "/predictions/echo", b"x", mode="text")).status == 200
    assert readers.works == ["Native._read"]
