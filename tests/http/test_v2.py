"""The open inference protocol over REST: transcripts of calls and answers."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from kserve_torch.codec import results
from kserve_torch.events import Accepted, Finished, Responded
from kserve_torch.http.call import Answer
from kserve_torch.http.v2 import HEADER_LENGTH, V2
from kserve_torch.models.registry import Registry

from ..makers import ECHO, make_archive
from ..threads import Readers
from .conftest import call, parsed, routed

INFER = "/v2/models/echo/infer"


async def answered(registry: Registry, body: Any, path: str = INFER, **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await routed(V2(registry).route, call("POST", path, content, **headers))
    return answer


def text(*values: str, name: str = "a") -> dict[str, Any]:
    return {"name": name, "shape": [len(values)], "datatype": "BYTES", "data": list(values)}


async def test_each_tensor_is_a_row(registry: Registry) -> None:
    body = {"id": "7", "inputs": [text("x"), text("y", name="b")]}
    curls = "application/x-www-form-urlencoded"  # whatever type is declared, it is JSON
    answer = await answered(registry, body, mode="text", content_type=curls)
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert parsed(answer) == {
        "id": "7",
        "model_name": "echo",
        "model_version": "1.0",
        "outputs": [
            {"name": "a", "datatype": "BYTES", "shape": [1], "data": ["text"]},
            {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["text"]},
        ],
    }


async def test_what_the_handler_sees(registry: Registry) -> None:
    tensor = {"name": "a", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
    answer = await answered(registry, {"inputs": [{**tensor, "parameters": {"k": 1}}]})
    (seen,) = parsed(answer)["outputs"][0]["data"]
    assert json.loads(seen) == {
        "name": "'a'",
        "shape": "[1, 2]",
        "datatype": "'INT64'",
        "data": "[[1, 2]]",
        "parameters": "{'k': 1}",
    }


async def test_what_the_handler_answers_is_converted_on_its_thread(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    real = results._text

    def text_of(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(results, "_text", text_of)
    assert (await answered(registry, {"inputs": [text("x")]})).status == 200
    assert [" worker " in thread for thread in threads] == [True]


async def test_ids(registry: Registry) -> None:
    body = {"inputs": [text("x")]}
    assert parsed(await answered(registry, body, x_request_id="9"))["id"] == "9"
    assert parsed(await answered(registry, {**body, "id": "7"}, x_request_id="9"))["id"] == "7"
    assert parsed(await answered(registry, {**body, "id": ""}, x_request_id="9"))["id"] == ""
    first, second = [parsed(await answered(registry, body))["id"] for _ in range(2)]
    assert first
    assert first != second


async def test_parameters_go_through_and_headers_come_back(registry: Registry) -> None:
    body = {"inputs": [text("x")], "parameters": {"mode": "image"}}
    answer = await answered(registry, {**body, "outputs": [binary("a")]})
    assert ("x-own", "1") in answer.headers
    length = dict(answer.headers)[HEADER_LENGTH]
    assert isinstance(answer.body, bytes)
    head = orjson.loads(answer.body[: int(length)])
    assert head["parameters"] == {"x-own": "1"}
    assert answer.body[int(length) :] == struct.pack("<I", 4) + b"\x89PNG"
    assert answer.content_type == "application/octet-stream"


async def test_headers_about_another_body_stay_behind(registry: Registry) -> None:
    answer = await answered(registry, {"inputs": [text("x")]}, mode="another server's")
    assert list(answer.headers) == [("X-Own", "1")]
    assert parsed(answer)["parameters"] == {"X-Own": "1"}


def binary(name: str) -> dict[str, Any]:
    return {"name": name, "parameters": {"binary_data": True}}


async def test_bytes_that_json_cannot_hold(registry: Registry) -> None:
    answer = await answered(registry, {"inputs": [text("x")]}, mode="image")
    assert answer.status == 500
    assert "request it as binary data" in parsed(answer)["error"]


async def test_binary_in(registry: Registry) -> None:
    sized = {"name": "a", "shape": [2], "datatype": "INT16", "parameters": {"binary_data_size": 4}}
    head = json.dumps({"inputs": [sized, text("x", name="b")]}).encode()
    lengths = {HEADER_LENGTH: str(len(head)), "mode": "row"}
    answer = await answered(registry, head + b"\x01\x00\xff\xff", **lengths)
    seen, _ = (json.loads(output["data"][0]) for output in parsed(answer)["outputs"])
    assert seen["data"] == [1, -1]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "Unrecognized request format"),
        ({"inputs": [{**text("x"), "shape": [2]}]}, 'inputs[0] "a".data: 1 elements'),
        ({"inputs": [text("x")], "outputs": [{"name": "z"}]}, 'no output "z"'),
    ],
)
async def test_bodies_that_are_no_requests(registry: Registry, body: Any, error: str) -> None:
    answer = await answered(registry, body)
    assert answer.status == 400
    assert list(parsed(answer)) == ["error"]
    assert error in parsed(answer)["error"]


@pytest.mark.parametrize(
    ("path", "asked"), [(INFER, ""), ("/v2/models/echo/versions/1.0/infer", "1.0")]
)
async def test_metrics_tell_whether_a_version_was_named(
    registry: Registry, path: str, asked: str
) -> None:
    events: list[Any] = []
    registry.observers.add(events.append, [Accepted, Finished])
    await answered(registry, {"inputs": [text("x")]}, path)
    assert [event.asked for event in events] == [asked] * 2


async def test_versions(registry: Registry) -> None:
    body = {"inputs": [text("x")]}
    await registry.register("echo_2.0.mar")
    for version in ("1.0", "2.0"):
        answer = await answered(registry, body, f"/v2/models/echo/versions/{version}/infer")
        assert parsed(answer)["model_version"] == version
    answer = await answered(registry, body, "/v2/models/echo/versions/3.0/infer")
    assert answer.status == 404
    answer = await answered(registry, body, "/v2/models/nobody/infer")
    assert answer.status == 404


async def test_a_body_that_is_the_declared_input(registry: Registry, store: Path) -> None:
    signature = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], "outputs": []}
    config = {"c.yaml": json.dumps({"signature": signature}), "handler.py": ECHO}
    make_archive(store / "told.mar", config, modelName="told", configFile="c.yaml")
    await registry.load("told")
    sent = struct.pack("<4f", 1, 2, 3, 4)
    answer = await answered(registry, sent, "/v2/models/told/infer", **{HEADER_LENGTH: "0"})
    assert isinstance(answer.body, bytes)
    length = int(dict(answer.headers)[HEADER_LENGTH])
    (output,) = orjson.loads(answer.body[:length])["outputs"]
    assert (output["name"], output["shape"]) == ("x", [2, 2])
    assert struct.unpack("<4d", answer.body[length:]) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("signature", "asked", "outputs"),
    [
        ("signature: {outputs: [{name: y, datatype: INT64, shape: [-1, 2]}]}", "y", "y INT64 0 2"),
        ("signature: {outputs: [{name: y, datatype: INT64, shape: [-1, 2]}]}", "", "y INT64 0 2"),
        (
            "signature: {outputs: [{name: y, datatype: INT64, shape: [-1, 2]}]}\nv2_flatten: true",
            "y",
            "y INT64 0",
        ),
        ("", "y", "y FP64 0"),
        ("", "", "x FP64 0"),
    ],
)
async def test_a_batch_without_rows_has_the_outputs_of_others(
    registry: Registry, store: Path, signature: str, asked: str, outputs: str
) -> None:
    files = {"c.yaml": f"v2_rows: batch\n{signature}", "handler.py": ECHO}
    make_archive(store / "rows.mar", files, modelName="rows", configFile="c.yaml")
    await registry.load("rows")
    body = {"inputs": [{"name": "x", "shape": [0, 3], "datatype": "FP32", "data": []}]}
    selected = {"outputs": [{"name": asked}]} if asked else {}
    answer = await answered(registry, body | selected, "/v2/models/rows/infer")
    assert answer.status == 200
    (output,) = parsed(answer)["outputs"]
    told = (output["name"], output["datatype"], *output["shape"])
    assert (" ".join(map(str, told)), output["data"]) == (outputs, [])


@pytest.mark.parametrize(
    ("rows", "inputs", "verb", "names"),
    [
        ("tensor", "a", "infer", ["y"]),
        ("batch", "a", "infer", ["y"]),
        ("batch", "ab", "infer", ["y"]),
        ("tensor", "ab", "infer", ["a", "b"]),
        ("tensor", "a", "explain", ["a"]),
    ],
)
async def test_outputs_have_the_names_that_the_model_declares(
    registry: Registry, store: Path, rows: str, inputs: str, verb: str, names: list[str]
) -> None:
    """Clients that read the metadata ask for these. Explanations are not what it describes."""
    declared = "signature: {outputs: [{name: y, datatype: BYTES, shape: [-1]}]}"
    handler = "def handle(data, context):\n    return data and ['x'] * len(data)"
    files = {"c.yaml": f"v2_rows: {rows}\n{declared}", "handler.py": handler}
    make_archive(store / "rows.mar", files, modelName="rows", configFile="c.yaml")
    await registry.load("rows")
    body: dict[str, Any] = {"inputs": [text("x", name=name) for name in inputs]}
    for asked in ({}, {"outputs": [{"name": name} for name in names]}):
        answer = await answered(registry, body | asked, f"/v2/models/rows/{verb}")
        assert [output["name"] for output in parsed(answer)["outputs"]] == names


@pytest.mark.parametrize(
    "path", ["/v2/models/echo/explain", "/v2/models/echo/versions/1.0/explain"]
)
async def test_explain(registry: Registry, path: str) -> None:
    answer = await answered(registry, {"inputs": [text("x")]}, path, mode="headers")
    (seen,) = parsed(answer)["outputs"][0]["data"]
    assert json.loads(seen)["explain"] == "True"


async def test_a_target_for_all_inputs(registry: Registry) -> None:
    async def targets(path: str, *inputs: dict[str, Any]) -> list[str | None]:
        answer = await answered(registry, {"inputs": inputs, "parameters": {"target": 3}}, path)
        rows = [json.loads(output["data"][0]) for output in parsed(answer)["outputs"]]
        return [row.get("target") for row in rows]

    explain, several = "/v2/models/echo/explain", (text("x"), text("y", name="b"))
    assert await targets(explain, *several) == ["3", "3"]
    assert await targets(explain, {**text("x"), "target": 4}, several[1]) == ["4", None]
    assert await targets(INFER, *several) == [None, None]


@pytest.mark.parametrize(
    ("mode", "status", "error"),
    [
        ("status", 507, "Invalid response"),
        ("raise", 500, "ValueError: broken in "),
        ("set", 500, 'output "a": '),
        ("code", 599, "my text"),
    ],
)
async def test_failing_handlers(registry: Registry, mode: str, status: int, error: str) -> None:
    answer = await answered(registry, {"inputs": [text("x")]}, mode=mode)
    assert answer.status == status
    assert parsed(answer)["error"].startswith(error)


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
async def test_other_methods(registry: Registry, method: str) -> None:
    answer = await routed(V2(registry).route, call(method, INFER))
    assert (answer.status, dict(answer.headers)) == (405, {"allow": "POST"})


@pytest.mark.parametrize(
    "path", ["/v2/models/echo", "/v2/models/echo/guess", "/v2/models/a/b/infer"]
)
async def test_other_paths_are_left_to_others(registry: Registry, path: str) -> None:
    assert await V2(registry).route(call("POST", path)) is None


# --- what is told of requests that were refused ---


@pytest.mark.parametrize(
    ("path", "version"),
    [
        (INFER, "1.0"),
        ("/v2/models/echo/versions/1.0/infer", "1.0"),
        ("/v2/models/echo/versions/2.0/infer", "2.0"),
        ("/v2/models/echo/versions/77/infer", ""),
        ("/v2/models/nobody/infer", ""),
    ],
)
async def test_refused_requests_are_booked_on_the_version_that_they_ask_for(
    registry: Registry, path: str, version: str
) -> None:
    await registry.register("echo_2.0.mar")
    told = responses(registry)
    await answered(registry, {"id": "7", "inputs": []}, path)
    await asyncio.sleep(0)
    assert [(event.version, event.request_id) for event in told] == [(version, "7")]


@pytest.mark.parametrize(
    ("body", "headers", "id_"),
    [
        (b'{"id": "7", "inputs": 1}', {}, "7"),
        (b'{"id": "7", "inputs": 1}', {"x_request_id": "8"}, "7"),
        (b'{"id": "7", "inputs": 1}??', {"inference_header_content_length": "24"}, "7"),
        (b'{"id": "7", "inputs": 1}', {"inference_header_content_length": "9" * 5000}, "8"),
        (b'{"id": 7, "inputs": 1}', {}, "-"),
        (b"[]", {}, "-"),
        (b'{"id": "7', {"x_request_id": "8"}, "8"),
        (b'{"id": "7", "inputs": "%b"}' % (b"x" * 70_000), {"x_request_id": "8"}, "8"),
    ],
)
async def test_refused_requests_are_booked_with_their_id(
    registry: Registry, body: bytes, headers: dict[str, str], id_: str
) -> None:
    told = responses(registry)
    headers.setdefault("x_request_id", "8" if id_ == "8" else "")
    answer = await answered(registry, body, **headers)
    await asyncio.sleep(0)
    assert answer.status == 400
    assert [event.request_id for event in told] == [id_]


def responses(registry: Registry) -> list[Responded]:
    """Collects what is told of answers from now on."""
    told: list[Any] = []
    registry.observers.add(told.append, [Responded])
    return told


async def test_large_bodies_are_read_aside(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers(monkeypatch)
    assert (await answered(registry, {"inputs": [text("x")]}, mode="text")).status == 200
    assert (await answered(registry, b"{")).status == 400
    assert readers.works == ["decode", "decode"]


async def test_large_answers_are_written_aside(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers(monkeypatch)
    assert (await answered(registry, {"inputs": [text("x")]})).status == 200
    assert readers.works == ["decode", "_answer"]
