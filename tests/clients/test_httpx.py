"""Plain HTTP, as curl, browsers and KServe's agent send it."""

import json
from collections.abc import Iterator

import httpx
import pytest

from ..server import Server

INFER = "/v2/models/identity/infer"
BODY = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [2], "data": [1, 2]}]}


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "application/json; charset=utf-8", "text/plain",
     "application/x-www-form-urlencoded", "application/octet-stream"],
)  # fmt: skip
def test_v2_under_any_content_type(client: httpx.Client, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = client.post(INFER, content=json.dumps(BODY).encode(), headers=headers)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["outputs"] == BODY["inputs"]


def test_no_request_header_is_echoed(client: httpx.Client) -> None:
    headers = {"authorization": "Bearer secret", "cookie": "a=b", "x-mine": "1"}
    for path in ("/v1/models/identity:predict", "/v1/models/why:explain"):
        answer = client.post(path, json={"instances": [{"data": 1}]}, headers=headers)
        assert answer.status_code == 200
        assert not headers.keys() & answer.headers.keys()


def test_the_agent_loads_and_unloads(client: httpx.Client) -> None:
    """KServe's agent posts ``{}`` and looks at the status only (CONTRACT O83)."""
    path = "/v2/repository/models/extra"
    for _ in range(2):
        assert client.post(f"{path}/load", json={}).json() == {"name": "extra", "load": True}
    assert client.post("/v1/models/extra:explain", json={"instances": [{"data": 1}]}).json() == {
        "explanations": ["why 1"]
    }
    assert client.post(f"{path}/unload", json={}).json() == {"name": "extra", "unload": True}
    assert client.get("/v1/models/extra").status_code == 404


def test_the_index(client: httpx.Client) -> None:
    everything = client.post("/v2/repository/index").json()
    entry = {"name": "identity", "version": "1", "state": "READY", "reason": ""}
    assert entry in everything
    assert client.post("/v2/repository/index", json={"ready": True}).json() == everything
