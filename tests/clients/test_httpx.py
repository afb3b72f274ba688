"""Plain HTTP, as curl, browsers and KServe's agent send it."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from ..server import Server

INFER = "/v2/models/identity/infer"
BODY = {"inputs": [{"name": "x", "datatype": "INT8", "shape": [2], "data": [1, 2]}]}
LENGTH = "inference-header-content-length"


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


def test_an_answer_has_no_empty_members(client: httpx.Client) -> None:
    answer = client.post(INFER, json=BODY).json()
    assert sorted(answer) == ["id", "model_name", "model_version", "outputs"]
    assert answer["id"]


def deflated(body: bytes) -> bytes:
    """Without the zlib wrapper, as some clients understand the word."""
    squeeze = zlib.compressobj(wbits=-15)
    return squeeze.compress(body) + squeeze.flush()


@pytest.mark.parametrize(
    ("coding", "encode"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", deflated)],
)
@pytest.mark.parametrize("path", [INFER, "/v1/models/identity:predict"])
def test_compressed_bodies(
    client: httpx.Client, path: str, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    body: dict[str, Any] = BODY if path == INFER else {"instances": [[1, 2]]}
    content = encode(json.dumps(body).encode())
    answer = client.post(path, content=content, headers={"content-encoding": coding})
    assert answer.status_code == 200, answer.text
    data = answer.json()["outputs"][0]["data"] if path == INFER else answer.json()["predictions"][0]
    assert data == [1, 2]


def test_json_and_binary_in_one_request(client: httpx.Client) -> None:
    values = np.array([[1.5, -2.0]], np.float32)
    inputs = [
        {"name": "a", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
        {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["text"]},
    ]
    outputs = [{"name": "b"}, {"name": "a", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    headers = {LENGTH: str(len(head)), "content-type": "application/octet-stream"}
    answer = client.post(INFER, content=head + values.tobytes(), headers=headers)
    length = int(answer.headers[LENGTH])
    named, binary = json.loads(answer.content[:length])["outputs"]
    assert (named["name"], named["data"]) == ("b", ["text"])
    assert binary["parameters"] == {"binary_data_size": 8}
    assert answer.content[length:] == values.tobytes()
    assert answer.headers["content-type"] == "application/octet-stream"


def test_a_body_that_is_one_tensor(client: httpx.Client) -> None:
    answer = client.post(INFER, content=b"\x00\xff", headers={LENGTH: "0"})
    length = int(answer.headers[LENGTH])
    assert json.loads(answer.content[:length])["outputs"][0]["datatype"] == "BYTES"
    assert answer.content[length:] == b"\x02\x00\x00\x00\x00\xff"


def test_no_request_header_is_echoed(client: httpx.Client) -> None:
    headers = {"authorization": "Bearer secret", "cookie": "a=b", "x-mine": "1"}
    for path in ("/v1/models/identity:predict", "/v1/models/why:explain"):
        answer = client.post(path, json={"instances": [{"data": 1}]}, headers=headers)
        assert answer.status_code == 200
        assert not headers.keys() & answer.headers.keys()


def test_headers_of_the_handler(client: httpx.Client) -> None:
    answer = client.post("/v1/models/headers:predict", json={"instances": [{"data": "x-mine"}]})
    assert answer.json() == {"predictions": ["None"]}
    assert answer.headers["x-asked-for"] == "x-mine"


def test_v1_parameters(client: httpx.Client) -> None:
    body = {"instances": [{"data": "flavour"}], "parameters": {"flavour": "sour"}}
    answer = client.post("/v1/models/headers:predict", json=body)
    assert answer.json() == {"predictions": ["sour"]}


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
