"""Hostile bodies on every route: a 4xx of the right form each time, and the next request works."""

import base64
import io
import json
import random
import socket
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import httpx
import pytest
import torch
from PIL import Image

from kserve_torch.grpc.protos import open_inference_pb2 as pb

from ..makers import make_archive
from .actor import V1, V2, Client, store_of, talking_to

V1_PATHS = ("/v1/models/m:predict", "/v1/models/m:explain")
V2_PATHS = ("/v2/models/m/infer", "/v2/models/m/versions/1.0/infer", "/v2/models/m/explain")
HUGE = "9" * 400


def inputs(**members: Any) -> bytes:
    whole = {"name": "a", "shape": [1], "datatype": "INT64", "data": [1], **members}
    present = {key: value for key, value in whole.items() if value is not ...}
    return json.dumps({"inputs": [present]}).encode()


NO_REQUEST = {
    "empty": b"",
    "truncated": b'{"instances": [{"data": "x"',
    "deep": b'{"instances": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "latin-1": '{"instances": ["é"]}'.encode("latin-1"),
    "lone escape": b'{"instances": ["\\ud800"]}',
    "utf-16": '{"instances": []}'.encode("utf-16"),
    "binary": bytes(range(256)),
    "nan": b'{"instances": [NaN]}',
    "list": b"[]",
    "none": b"{}",
    "text": b'{"instances": "x"}',
    "no tensor": b'{"inputs": [1]}',
    "missing name": inputs(name=...),
    "unknown datatype": inputs(datatype="INT128"),
    "overflowing shape": inputs(shape=[2**62, 4, 4]),
    "shape beyond 64 bits": inputs(shape=[int(HUGE)]),
    "ragged data": inputs(shape=[2, 2], data=[[1, 2], [3]]),
    "beyond 64 bits": inputs(data=[2**70]),
    "huge size": inputs(data=..., parameters={"binary_data_size": 2**63}),
    "parameters": b'{"parameters": [], ' + inputs()[1:],
}
HEADERS = {
    "charset": {"content-type": "application/json; charset=zlib"},
    "coding": {"content-encoding": "br"},
    "no gzip": {"content-encoding": "gzip"},
    "time-out": {"x-request-timeout-ms": "x"},
}


COLOURS = """
import torch

class Colours(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, image):
        return image.mean((2, 3)).repeat(1, 4) * self.scale
"""


def weights() -> bytes:
    buffer = io.BytesIO()
    torch.save({"scale": torch.ones(1)}, buffer)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = store_of(tmp_path_factory.mktemp("store"), m="")
    make_archive(
        store / "images.mar",
        {"model.py": COLOURS, "model.pt": weights()},
        modelName="images",
        handler="image_classifier",
        modelFile="model.py",
        serializedFile="model.pt",
    )
    with talking_to(store) as client:
        yield client


@pytest.fixture(autouse=True)
def _serves_on(client: Client) -> Iterator[None]:
    yield
    assert client.server.process.poll() is None
    assert client.ask(V1, "m", "say on").ok
    assert client.ask(V2, "m", "say on").ok
    assert "unexpected" not in client.server.log


def check_kserve(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    assert list(answer.json()) == ["error"]
    check_text(answer.json()["error"])


def check_native(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    error = answer.json()
    assert list(error) == ["code", "type", "message"]
    assert error["code"] == answer.status_code
    assert error["type"].endswith("Exception")
    check_text(error["message"])


def check_text(text: str) -> None:
    assert 0 < len(text) < 1000
    assert "Traceback" not in text
    assert "site-packages" not in text
    assert tempfile.gettempdir() not in text


@pytest.mark.parametrize("name", NO_REQUEST)
@pytest.mark.parametrize("path", [*V1_PATHS, *V2_PATHS])
def test_bodies(client: Client, path: str, name: str) -> None:
    check_kserve(client.http.post(path, content=NO_REQUEST[name]))


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("path", [V1_PATHS[0], V2_PATHS[0]])
def test_headers(client: Client, path: str, name: str) -> None:
    check_kserve(client.http.post(path, content=b"{", headers=HEADERS[name]))


@pytest.mark.parametrize("name", ["coding", "no gzip", "time-out"])
def test_native_headers(client: Client, name: str) -> None:
    check_native(client.http.post("/predictions/m", content=b"{", headers=HEADERS[name]))


MULTIPARTS = {
    "never ends": b"--b\r\ncontent-disposition: form-data; name=data\r\n\r\nx",
    "many parts": b"--b\r\ncontent-disposition: form-data; name=d\r\n\r\n\r\n" * 20_000,
    "long header": b"--b\r\ncontent-disposition: " + b"x" * 100_000 + b"\r\n\r\n\r\n--b--",
}


@pytest.mark.parametrize("name", MULTIPARTS)
def test_multipart(client: Client, name: str) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    check_native(client.http.post("/predictions/m", content=MULTIPARTS[name], headers=headers))


@pytest.mark.parametrize(
    "path",
    [
        *("/v1", "/v1/", "/v1/models/none", "/v1/models/m:train", "/v1/models/:predict"),
        *("/v1/models/m/:predict", "/v1/models/../m:predict", "/v1/models/%00:predict"),
        *("/v1/models/%ff:predict", "/v1/models/m%2f..%2fm:predict", "/v1/models/" + "x" * 500),
        *("/v2/models/none", "/v2/models/m/versions/9/infer", "/v2/models/m/versions/", "/v2/none"),
        *("/v2/models/m/versions/%2e%2e/infer", "/v2/models//infer", "/v2/models/%0a/ready"),
        *("/v2/repository", "/v2/repository/models/none/load", "/v2/repository/models/..%2f/load"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_paths(client: Client, method: str, path: str) -> None:
    check_kserve(client.http.request(method, path, content=b"{}"))


# --- images ---------------------------------------------------------------------------------------


def image() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (300, 300), "red").save(buffer, "PNG")
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    checked = kind + data
    return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is large; its few bytes of pixels compress to nothing."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(10_000))
    end = chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + end


IMAGES = {"text": b"no image", "half a png": image()[:400], "bomb": bomb(60_000, 60_000)}


@pytest.mark.parametrize("name", IMAGES)
def test_images(client: Client, name: str) -> None:
    """A bad image among good ones is named, in every protocol."""
    data = base64.b64encode(IMAGES[name]).decode()
    good = {"data": base64.b64encode(image()).decode()}
    answer = client.http.post(
        "/v1/models/images:predict", json={"instances": [good, {"data": data}]}
    )
    check_kserve(answer)
    assert "instances[1]" in answer.text
    whole = {"name": "a", "shape": [1], "datatype": "BYTES", "data": [data]}
    check_kserve(client.http.post("/v2/models/images/infer", json={"inputs": [whole]}))
    check_native(client.http.post("/predictions/images", content=IMAGES[name]))


# --- below HTTP -----------------------------------------------------------------------------------

SMUGGLED = {
    "two lengths": b"content-length: 5\r\ncontent-length: 6\r\n\r\nxxxxx",
    "length and chunks": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "unknown coding": b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two codings": b"transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n",
    "negative length": b"content-length: -5\r\n\r\nxxxxx",
    "length of letters": b"content-length: five\r\n\r\nxxxxx",
    "length beyond 64 bits": b"content-length: %s\r\n\r\nx" % HUGE.encode(),
    "signed length": b"content-length: +5\r\n\r\nxxxxx",
    "space before colon": b"content-length : 5\r\n\r\nxxxxx",
    "folded header": b"x-a: b\r\n c\r\ncontent-length: 5\r\n\r\nxxxxx",
    "no colon": b"content-length 5\r\n\r\nxxxxx",
    "nul in header": b"x-a: \0\r\n\r\n",
    "bad chunk size": b"transfer-encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n",
    "huge chunk size": b"transfer-encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\nx\r\n0\r\n\r\n",
    "negative chunk size": b"transfer-encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
    "chunk without end": b"transfer-encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n",
}
NO_HTTP = {
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http 0.9": b"GET /\r\n",
    "words": b"hello there\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "method": b"G\xc3\x89T / HTTP/1.1\r\n\r\n",
    "bytes": bytes(range(256)) + b"\r\n\r\n",
    "path": b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
}


def everything(client: Client, sent: bytes) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", client.server.ports["http"]), 10)) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while chunk := sock.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass
        return received


@pytest.mark.parametrize("name", SMUGGLED)
def test_smuggling(client: Client, name: str) -> None:
    hidden = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\n"
    answers = everything(client, head + SMUGGLED[name] + hidden)
    assert answers.startswith(b"HTTP/1.1 4")
    assert answers.count(b"HTTP/1.1 ") == 1, answers
    assert list(json.loads(answers.partition(b"\r\n\r\n")[2])) == ["error"]


@pytest.mark.parametrize("name", NO_HTTP)
def test_no_http(client: Client, name: str) -> None:
    answer = everything(client, NO_HTTP[name])
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 505 ")) or not answer, answer
    assert b"Traceback" not in answer


# --- gRPC -----------------------------------------------------------------------------------------


def test_grpc_garbage(client: Client) -> None:
    """Whatever bytes come as a message, the answer is a status and not a dead server."""
    generator = random.Random(7)
    tensor = pb.ModelInferRequest.InferInputTensor(name="a", shape=[1], datatype="INT64")
    good = pb.ModelInferRequest(model_name="m", inputs=[tensor]).SerializeToString()
    call = client.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
    for _ in range(300):
        data = bytearray(good * generator.randint(1, 3))
        for _ in range(generator.randint(1, 6)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(data))
        assert caught.value.code() in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
        ), (bytes(data), caught.value.details())
        check_text(caught.value.details())


def test_the_log_cannot_be_forged(client: Client) -> None:
    forged = "\n2026-01-01T00:00:00.000Z INFO kserve_torch: all is well"
    body = {"id": forged, "inputs": [{**json.loads(inputs())["inputs"][0], "name": forged}]}
    client.http.post(V2_PATHS[0], json=body)
    body["inputs"][0]["data"] = ["raise"]
    body["inputs"][0]["datatype"] = "BYTES"
    assert client.http.post(V2_PATHS[0], json=body).status_code == 500
    client.http.get("/v1/models/" + forged.replace("\n", "%0a"))
    assert not any(line.startswith("2026-01-01") for line in client.server.lines)
