"""Health, metadata and the repository extension, on a registry with models of every state."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

import kserve_torch
from kserve_torch.http.metadata import Metadata
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.settings.models import StartupModel

from ..makers import ECHO, make_archive
from .conftest import call, routed

TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}


def declared(signature: Any) -> dict[str, str]:
    return {"handler.py": ECHO, "c.yaml": json.dumps({"signature": signature})}


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    """``told`` declares its tensors, ``shown`` has a sample, ``odd`` a signature that is none."""
    sample = {"inputs": [{"name": "a", "datatype": "INT8", "shape": [1, 2], "data": [1, 2]}]}
    archives = {
        "told": declared({"inputs": [TENSOR], "outputs": []}),
        "shown": {"handler.py": ECHO, "warmup.json": json.dumps(sample)},
        "odd": declared({"inputs": [{"name": "x"}]}),
        "plain": {"handler.py": ECHO},
        "broken": {"handler.py": "raise ImportError('no such thing')"},
    }
    for name, files in archives.items():
        model = {"modelName": name, "modelVersion": "3"}
        if "c.yaml" in files:
            model["configFile"] = "c.yaml"
        make_archive(tmp_path / f"{name}.mar", files, **model)
    registry = Registry(Settings(model_store=tmp_path))
    for name in ("told", "shown", "odd"):
        await registry.start([StartupModel(name=None, file=f"{name}.mar")])
    yield registry
    await registry.close()


async def told(registry: Registry, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    answer = await routed(Metadata(registry).route, call(method, path, body))
    assert isinstance(answer.body, bytes)
    return answer.status, orjson.loads(answer.body)


async def test_the_server(registry: Registry) -> None:
    assert await told(registry, "GET", "/") == (200, {"status": "alive"})
    status, server = await told(registry, "GET", "/v2")
    assert (status, server["name"], server["version"]) == (
        200,
        "kserve_torch",
        kserve_torch.__version__,
    )
    assert await told(registry, "GET", "/v2/") == (200, server)
    assert await told(registry, "GET", "/v2/health/live") == (200, {"live": True})
    assert await told(registry, "GET", "/v2/health/ready") == (200, {"ready": True})


async def test_a_server_that_only_a_restart_helps(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registry, "live", lambda self: False)
    assert await told(registry, "GET", "/v2/health/live") == (503, {"live": False})


async def test_the_description_of_the_api_is_torchserves(registry: Registry) -> None:
    assert await Metadata(registry).route(call("OPTIONS", "/")) is None


@pytest.mark.parametrize("path", ["/v1/models", "/v2/models"])
async def test_the_models(registry: Registry, path: str) -> None:
    assert await told(registry, "GET", path) == (200, {"models": ["odd", "shown", "told"]})


async def test_a_declared_signature(registry: Registry) -> None:
    assert await told(registry, "GET", "/v2/models/told") == (
        200,
        {
            "name": "told",
            "versions": ["3"],
            "platform": "pytorch_eager",
            "inputs": [TENSOR],
            "outputs": [],
        },
    )


async def test_a_signature_from_warm_up(registry: Registry) -> None:
    _, model = await told(registry, "GET", "/v2/models/shown/versions/3")
    assert model["inputs"] == [{"name": "a", "datatype": "INT8", "shape": [1, 2]}]
    assert model["outputs"] == [{"name": "a", "datatype": "INT64", "shape": [1, 2]}]


async def test_a_signature_that_is_none(
    tmp_path: Path, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    _, model = await told(registry, "GET", "/v2/models/odd")
    assert (model["inputs"], model["outputs"]) == ([], [])
    with caplog.at_level(logging.WARNING):
        await registry.load("odd")
    assert "c.yaml: signature: {'inputs': [{'name': 'x'}]}" in caplog.text


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        ("/v1/models/told", 200, {"name": "told", "ready": True}),
        ("/v1/models/nobody", 404, {"error": "Model with name nobody does not exist."}),
        ("/v2/models/told/ready", 200, {"name": "told", "ready": True}),
        ("/v2/models/told/versions/3/ready", 200, {"name": "told", "ready": True}),
        ("/v2/models/nobody", 404, {"error": "Model with name nobody does not exist."}),
    ],
)
async def test_one_model(registry: Registry, path: str, status: int, answer: Any) -> None:
    assert await told(registry, "GET", path) == (status, answer)


@pytest.mark.parametrize("path", ["/v2/models/told/versions/4", "/v2/models/told/versions/4/ready"])
async def test_an_unknown_version(registry: Registry, path: str) -> None:
    status, answer = await told(registry, "GET", path)
    assert (status, list(answer)) == (404, ["error"])
    assert "4" in answer["error"]


async def test_a_model_that_cannot_be_loaded(registry: Registry) -> None:
    status, answer = await told(registry, "POST", "/v2/repository/models/broken/load", b"{}")
    assert (status, list(answer)) == (503, ["error"])
    assert "no such thing" in answer["error"]
    status, answer = await told(registry, "GET", "/v1/models/broken")
    assert (status, answer) == (503, {"error": "Model with name broken is not ready."})
    assert await told(registry, "GET", "/v2/models/broken/ready") == (
        503,
        {"name": "broken", "ready": False},
    )
    assert (await told(registry, "GET", "/v2/health/ready"))[0] == 200  # nobody configured it
    assert (await told(registry, "GET", "/v2/health/live"))[0] == 200
    _, index = await told(registry, "POST", "/v2/repository/index")
    (entry,) = [entry for entry in index if entry["name"] == "broken"]
    assert entry["state"] == "UNAVAILABLE"
    assert "no such thing" in entry["reason"]
    _, ready = await told(registry, "POST", "/v2/repository/index", b'{"ready": true}')
    assert [entry["name"] for entry in ready] == ["odd", "shown", "told"]


async def test_a_model_without_workers_is_not_ready(registry: Registry) -> None:
    """The index says what the readiness routes say, though the model is loaded."""
    await registry.scale(registry.find("told"), 0, 0)
    assert (await told(registry, "GET", "/v2/models/told/ready"))[0] == 503
    _, index = await told(registry, "POST", "/v2/repository/index")
    (entry,) = [entry for entry in index if entry["name"] == "told"]
    assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "no worker is ready")
    _, ready = await told(registry, "POST", "/v2/repository/index", b'{"ready": true}')
    assert [entry["name"] for entry in ready] == ["odd", "shown"]


async def test_draining_is_not_ready(registry: Registry) -> None:
    registry.draining = True
    assert await told(registry, "GET", "/v2/health/ready") == (503, {"ready": False})
    assert (await told(registry, "GET", "/v2/health/live"))[0] == 200
    _, index = await told(registry, "POST", "/v2/repository/index")
    assert {entry["state"] for entry in index} == {"UNAVAILABLE"}
    assert index[0]["reason"] == "the server is being stopped"
    assert await told(registry, "POST", "/v2/repository/index", b'{"ready": true}') == (200, [])


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"null", b'{"parameters": {"unload_dependents": true}}']
)
async def test_load_and_unload(registry: Registry, body: bytes) -> None:
    """KServe's agent posts ``{}`` and looks at the status only (CONTRACT O83).

    A client that was generated from the OpenAPI document, in Go, posts ``null`` for no body.
    """
    path = "/v2/repository/models/plain"
    assert await told(registry, "POST", f"{path}/load", body) == (
        200,
        {"name": "plain", "load": True},
    )
    assert (await told(registry, "GET", "/v1/models/plain"))[0] == 200
    assert await told(registry, "POST", f"{path}/unload", body) == (
        200,
        {"name": "plain", "unload": True},
    )
    assert (await told(registry, "GET", "/v1/models/plain"))[0] == 404
    assert (await told(registry, "POST", f"{path}/unload", body))[0] == 404


@pytest.mark.parametrize("path", ["index", "models/plain/load", "models/told/unload"])
@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b'"x"', b"1"])
async def test_bodies_that_are_no_objects(registry: Registry, path: str, body: bytes) -> None:
    status, answer = await told(registry, "POST", f"/v2/repository/{path}", body)
    assert (status, list(answer)) == (400, ["error"])
    assert registry.names() == ["odd", "shown", "told"]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("index", b'{"ready": "false"}', "ready: expected true or false, got a string"),
        ("index", b'{"ready": 1}', "ready: expected true or false, got a number"),
        ("index", b"[]", "Expected a JSON object, got a list"),
        ("models/plain/load", b'{"parameters": 3}', "parameters: expected an object, got a number"),
        ("models/told/unload", b'{"parameters": []}', "parameters: expected an object, got a list"),
    ],
)
async def test_wrong_members(registry: Registry, path: str, body: bytes, error: str) -> None:
    assert await told(registry, "POST", f"/v2/repository/{path}", body) == (400, {"error": error})
    assert registry.names() == ["odd", "shown", "told"]


async def test_members_that_are_null(registry: Registry) -> None:
    for body in (b"null", b'{"ready": null}'):
        assert (await told(registry, "POST", "/v2/repository/index", body))[0] == 200
    path = "/v2/repository/models/plain/load"
    assert (await told(registry, "POST", path, b'{"parameters": null}'))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v2/models/told", "GET, HEAD"),
        ("GET", "/v2/repository/index", "POST"),
        ("PUT", "/v2/repository/models/told/load", "POST"),
        ("POST", "/v2/health/live", "GET, HEAD"),
    ],
)
async def test_other_methods(registry: Registry, method: str, path: str, allowed: str) -> None:
    answer = await routed(Metadata(registry).route, call(method, path))
    assert (answer.status, dict(answer.headers)) == (405, {"allow": allowed})
    assert isinstance(answer.body, bytes)
    assert list(orjson.loads(answer.body)) == ["error"]


async def test_head_is_get(registry: Registry) -> None:
    assert (await told(registry, "HEAD", "/v2/health/ready"))[0] == 200


@pytest.mark.parametrize("path", ["/v1", "/v2/models/told/infer", "/models", "/v2/models/a/b/c/d"])
async def test_other_paths_are_left_to_others(registry: Registry, path: str) -> None:
    assert await Metadata(registry).route(call("GET", path)) is None


async def test_a_load_goes_on_when_its_client_leaves(registry: Registry) -> None:
    asking = asyncio.create_task(told(registry, "POST", "/v2/repository/models/plain/load"))
    await asyncio.sleep(0)
    asking.cancel()
    while "plain" not in registry.names() or not registry.is_ready("plain"):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
