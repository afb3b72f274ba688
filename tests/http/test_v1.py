"""KServe's v1 data plane: transcripts of calls and answers."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import orjson
import pytest

from kserve_torch.codec import v1
from kserve_torch.engine import failures
from kserve_torch.events import Responded
from kserve_torch.http.call import Answer
from kserve_torch.http.v1 import V1
from kserve_torch.http.v2 import HEADER_LENGTH, V2
from kserve_torch.messages import Reply, Request
from kserve_torch.models.registry import Registry
from kserve_torch.settings.models import StartupModel

from ..makers import make_archive
from ..threads import Readers
from .conftest import call, parsed, routed

PREDICT = "/v1/models/echo:predict"


async def answered(registry: Registry, path: str, body: Any, **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await routed(V1(registry, V2(registry)).route, call("POST", path, content, **headers))
    return answer


async def test_predictions_are_as_many_as_instances(registry: Registry) -> None:
    answer = await answered(registry, PREDICT, {"instances": [1, "a", [None]]}, mode="row")
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.headers == []  # none of the request's
    assert answer.body == b'{"predictions":[1,"a",[null]]}'


async def test_lists_are_written_by_the_worker(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need not be copied then, which takes longer, and nothing else waits meanwhile."""
    results: list[Any] = []
    submit = registry.submit

    async def noting(request: Request) -> Reply:
        reply = await submit(request)
        results.extend(reply.results)
        return reply

    monkeypatch.setattr(registry, "submit", noting)
    answer = await answered(registry, PREDICT, {"instances": [[1.5, "a"], {"b": 2}]}, mode="row")
    assert answer.body == b'{"predictions":[[1.5,"a"],{"b":2}]}'
    assert [type(result) for result in results] == [orjson.Fragment] * 2


async def test_a_failed_request_is_no_garbage(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its megabytes would stay in memory until Python looks for that."""
    monkeypatch.setattr(failures.log, "disabled", True)  # pytest keeps what is logged

    class Watched(dict[str, str]):
        """Headers that can be referred to weakly; the request has them."""

    asked = call("POST", PREDICT, b'{"instances": [1]}')
    asked.headers = Watched(mode="raise")
    watched = weakref.ref(asked.headers)
    gc.disable()
    try:
        answer = await V1(registry, V2(registry)).route(asked)
        assert answer is not None
        assert answer.status == 500
        del asked
        async with asyncio.timeout(10):
            while watched() is not None:  # noqa: ASYNC110  # the worker may hold it a moment longer
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_a_body_that_fails_the_decoder_is_told_of(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MemoryError does: each answer is in the metrics and in the access log."""
    events: list[Any] = []
    registry.observers.add(events.append, [Responded])
    monkeypatch.setattr(v1, "decode", None)
    answer = await answered(registry, PREDICT, {"instances": [1]})
    await asyncio.sleep(0)
    assert [(event.status, event.error) for event in events] == [(answer.status, "TypeError")]


async def test_no_instances_need_no_handler(registry: Registry) -> None:
    answer = await answered(registry, PREDICT, {"instances": []}, mode="raise")
    assert (answer.status, answer.body) == (200, b'{"predictions":[]}')


async def test_no_instances_are_no_answer_of_a_model_that_is_not_ready(
    registry: Registry, store: Path
) -> None:
    """Nor of one without workers: what probes with an empty list must see it (CONTRACT K14)."""
    make_archive(store / "bad.mar", {"handler.py": "raise ImportError('absent')"}, modelName="bad")
    await registry.start([StartupModel(name=None, file="bad.mar")])
    answer = await answered(registry, "/v1/models/bad:predict", {"instances": []})
    assert answer.status == 503
    assert "absent" in parsed(answer)["error"]
    await registry.scale(registry.find("echo"), 0, 0)
    answer = await answered(registry, PREDICT, {"instances": []})
    assert answer.status == 503
    assert "no worker" in parsed(answer)["error"]


async def test_explain_is_told_to_the_handler(registry: Registry) -> None:
    path = "/v1/models/echo:explain"
    answer = await answered(registry, path, {"instances": [1]}, mode="headers")
    (headers,) = parsed(answer)["explanations"]
    assert headers["explain"] == "True"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Unrecognized request format"),
        (b"{}", 'Expected "instances" in the request'),
        (b'{"inputs": {"a": [1]}}', "inputs: expected a list"),
    ],
)
async def test_bodies_that_are_no_requests(registry: Registry, body: bytes, text: str) -> None:
    answer = await answered(registry, PREDICT, body)
    assert answer.status == 400
    assert list(parsed(answer)) == ["error"]
    assert text in parsed(answer)["error"]


@pytest.mark.parametrize(
    ("content_type", "body", "row"),
    [
        ("application/json; charset=utf-8", b'{"instances": ["\xc3\xa9"]}', "é"),
        ("application/json; charset=latin-1", b'{"instances": ["\xe9"]}', "é"),
        ("APPLICATION/JSON", b'{"instances": [1]}', 1),
        ("", b'{"instances": [1]}', 1),
        ("application/x-www-form-urlencoded", b'{"instances": [1]}', 1),
        ("application/octet-stream", b'{"instances": [1]}', 1),
        ("text/plain; charset=latin-1", b"\xe9", {"data": "é"}),
    ],
)
async def test_content_types(
    registry: Registry, content_type: str, body: bytes, row: object
) -> None:
    answer = await answered(registry, PREDICT, body, content_type=content_type, mode="row")
    assert parsed(answer) == {"predictions": [row]}


@pytest.mark.parametrize("content_type", ["image/png", "application/octet-stream"])
async def test_a_body_of_bytes_is_one_instance(registry: Registry, content_type: str) -> None:
    answer = await answered(registry, PREDICT, b"\x89PNG", content_type=content_type)
    assert parsed(answer) == {"predictions": [{"data": r"bytearray(b'\x89PNG')"}]}
    answer = await answered(
        registry, PREDICT, b"\x89PNG", content_type=content_type, mode="headers"
    )
    assert parsed(answer)["predictions"][0]["data"] == {"content-type": content_type}


async def test_v2_tensors_are_answered_as_v2(registry: Registry) -> None:
    body = {"id": "7", "inputs": [{"name": "a", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
    answer = await answered(registry, PREDICT, body)
    assert parsed(answer)["id"] == "7"
    assert parsed(answer)["outputs"][0]["name"] == "a"


X = {"name": "a", "shape": [1], "datatype": "BYTES", "data": ["x"]}
EVENT = {"specversion": "1.0", "id": "1", "source": "s", "type": "t"}


@pytest.mark.parametrize("binary", [False, True])
async def test_events_with_v2_tensors_are_answered_as_events(
    registry: Registry, binary: bool
) -> None:
    data = {"inputs": [X], "parameters": {"binary_data_output": binary}}
    headers = {f"ce_{name}": value for name, value in EVENT.items()}
    answer = await answered(registry, PREDICT, data, mode="row", **headers)
    assert dict(answer.headers)["ce-source"] == "io.kserve.inference.echo"
    assert answer.content_type != "application/cloudevents+json"
    body = {**EVENT, "data": data}
    declared = {"content_type": "application/cloudevents+json", "mode": "row"}
    answer = await answered(registry, PREDICT, body, **declared)
    if binary:  # which JSON has no place for
        assert answer.content_type == "application/octet-stream"
        assert dict(answer.headers)["ce-source"] == "io.kserve.inference.echo"
    else:
        assert answer.content_type == "application/cloudevents+json"
        assert parsed(answer)["data"]["outputs"][0]["name"] == "a"
    answer = await answered(registry, PREDICT, body, **{**declared, "mode": "raise"})
    assert (answer.status, list(parsed(answer))) == (500, ["error"])


@pytest.mark.parametrize("merge", ["", "true", "False"])
async def test_events_attributes_are_merged_if_asked_to(
    registry: Registry, merge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CE_MERGE", merge)
    monkeypatch.setenv("CE_SOURCE", "mine")
    body = {**EVENT, "extra": "e", "data": {"instances": [1]}}
    declared = {"content_type": "application/cloudevents+json", "mode": "row"}
    # The event's attributes are those of the body, whatever headers a proxy has added.
    answer = await answered(registry, PREDICT, body, **declared, ce_specversion="0.3", ce_extra="h")
    assert answer.content_type == "application/cloudevents+json"
    event = parsed(answer)
    assert (event["source"], event["data"]) == ("mine", {"predictions": [1]})
    assert event.get("extra") == ("e" if merge == "true" else None)


async def test_headers_that_are_no_event_are_none(registry: Registry) -> None:
    answer = await answered(registry, PREDICT, {"instances": [1]}, mode="row", ce_type="t")
    assert (answer.content_type, answer.body) == ("application/json", b'{"predictions":[1]}')


@pytest.mark.parametrize("content_type", ["application/octet-stream", "application/json", ""])
async def test_v2_tensors_with_binary_data(registry: Registry, content_type: str) -> None:
    """As KServe's client and Triton's send them; the header says so, whatever the type does."""
    size = {"binary_data_size": 2}
    x = {"name": "a", "shape": [2], "datatype": "INT8", "parameters": size}
    head = json.dumps({"id": "7", "inputs": [x]}).encode()
    headers = {"content_type": content_type, "inference_header_content_length": str(len(head))}
    answer = await answered(registry, PREDICT, head + b"\1\2", mode="row", **headers)
    (output,) = parsed(answer)["outputs"]
    assert (answer.status, parsed(answer)["id"], output["name"]) == (200, "7", "a")
    answer = await answered(registry, PREDICT, head + b"\1", mode="row", **headers)
    assert answer.status == 400
    assert parsed(answer)["error"].startswith('inputs[0] "a": binary_data_size is 2, 1 bytes are')


@pytest.mark.parametrize(
    ("mode", "status", "text"),
    [
        ("status", 507, "Invalid response"),
        ("raise", 500, "ValueError: broken in "),
        ("set", 500, "predictions[0]: "),
        ("code", 599, "my text"),
    ],
)
async def test_failing_handlers(registry: Registry, mode: str, status: int, text: str) -> None:
    answer = await answered(registry, PREDICT, {"instances": [1]}, mode=mode)
    assert answer.status == status
    assert list(parsed(answer)) == ["error"]
    assert parsed(answer)["error"].startswith(text)
    assert str(registry.workdir) not in parsed(answer)["error"]


async def test_why_an_answer_cannot_be_sent_is_logged(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    await answered(registry, PREDICT, {"instances": [1]}, mode="set", x_request_id="7")
    assert caplog.messages[0].startswith("echo 1.0 predict: request 7 failed: predictions[0]: ")


async def test_headers_of_the_handler_and_none_of_the_request(registry: Registry) -> None:
    answer = await answered(registry, PREDICT, {"instances": [1]}, mode="image", cookie="a=b")
    assert list(answer.headers) == [("x-own", "1")]
    encoded = base64.b64encode(b"\x89PNG").decode()
    assert parsed(answer) == {"predictions": [encoded]}


async def test_arrays_become_lists(registry: Registry) -> None:
    answer = await answered(registry, PREDICT, {"instances": [1]}, mode="tensor")
    assert answer.body == b'{"predictions":[[1,2]]}'


async def test_unknown_models(registry: Registry) -> None:
    answer = await answered(registry, "/v1/models/nobody:predict", b"{")
    assert (answer.status, parsed(answer)) == (
        404,
        {"error": "Model with name nobody does not exist."},
    )


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
async def test_other_methods(registry: Registry, method: str) -> None:
    answer = await routed(V1(registry, V2(registry)).route, call(method, PREDICT))
    assert (answer.status, dict(answer.headers)) == (405, {"allow": "POST"})


@pytest.mark.parametrize(
    "path", ["/v1/models/echo", "/v1/models/echo:guess", "/v1/models/a/b:predict"]
)
async def test_other_paths_are_left_to_others(registry: Registry, path: str) -> None:
    assert await V1(registry, V2(registry)).route(call("POST", path)) is None


async def test_a_deadline_that_is_none(registry: Registry) -> None:
    for value in ("soon", "0", "-1", "inf", "nan"):
        answer = await answered(registry, PREDICT, {"instances": [1]}, x_request_timeout_ms=value)
        assert answer.status == 400
        assert "x-request-timeout-ms" in parsed(answer)["error"]


@pytest.mark.parametrize(
    ("body", "mode", "expected"),
    [
        (b'{"instances": [1, 2]}', "", (200, 2, 2, "")),
        (b"{", "", (400, 0, 0, "InvalidInput")),
        (b'{"instances": [1]}', "raise", (500, 1, 1, "HandlerError")),
        (b'{"instances": [1]}', "status", (507, 1, 1, "PredictionError")),
    ],
)
async def test_each_answer_is_reported(
    registry: Registry, body: bytes, mode: str, expected: tuple[int, int, int, str]
) -> None:
    events: list[Any] = []
    registry.observers.add(events.append, [Responded])
    await answered(registry, PREDICT, body, mode=mode, x_request_id="mine")
    await asyncio.sleep(0)
    (event,) = events
    assert (event.protocol, event.model, event.version) == ("v1", "echo", "1.0")
    assert (event.status, event.rows, event.timing.batch_rows, event.error) == expected
    assert bool(event.timing.handler) == bool(event.timing.batch_rows)
    assert event.seconds > event.timing.queued + event.timing.handler
    assert event.request_id == "mine"


@pytest.mark.parametrize("body", [b'{"instances": [1, 2]}', b"{"])
async def test_headers_are_told_of_to_who_asks_for_them_alone(
    registry: Registry, body: bytes
) -> None:
    """Events are kept until they are counted: with headers they would cost a seventh of answers."""
    events: list[Any] = []
    registry.observers.add(events.append, [Responded])
    for registry.observers.want_headers in (False, True):
        await answered(registry, PREDICT, body, x_request_id="mine")
        await asyncio.sleep(0)
    assert [event.headers.get("x-request-id") for event in events] == [None, "mine"]


async def test_large_bodies_are_read_aside(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers(monkeypatch)
    assert (await answered(registry, PREDICT, {"instances": [1]}, mode="text")).status == 200
    assert readers.works == ["_read"]
    tensor = b'{"inputs":[{"name":"a","shape":[1],"datatype":"UINT8","data":[1]}]}'
    headers = {HEADER_LENGTH: str(len(tensor)), "mode": "text"}
    assert (await answered(registry, PREDICT, tensor, **headers)).status == 200
    assert readers.works == ["_read", "_read"]
    assert (await answered(registry, PREDICT, tensor + b" ", **headers)).status == 400
    assert readers.works == ["_read", "_read", "decode"]
