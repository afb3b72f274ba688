"""`TorchModel` in a plain kserve.ModelServer gives the answers that our own server gives."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from ..clients.models import EXPLAINED, HEADERS, IDENTITY, MOODY, NAMED
from ..clients.values import TYPED, VALUES
from ..makers import make_archive
from ..server import ROOT, Server, free_ports

MODELS = {
    "identity": IDENTITY,
    "named": NAMED,
    "headers": HEADERS,
    "moody": MOODY,
    "why": EXPLAINED,
}
DOUBLED = (
    "def handle(data, context):\n    return data and [[2 * v for v in row['data']] for row in data]"
)
LENGTH = "inference-header-content-length"


@dataclass(frozen=True)
class Pair:
    """Clients of both servers: ours first, the plain one second."""

    http: tuple[httpx.Client, httpx.Client]
    grpc: tuple[Any, Any]

    def post(self, path: str, **request: Any) -> tuple[httpx.Response, httpx.Response]:
        ours, plain = (client.post(path, **request) for client in self.http)
        return ours, plain


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    store = tmp_path_factory.mktemp("plain")
    for name, handler in MODELS.items():
        make_archive(store / f"{name}.mar", {"handler.py": handler}, modelName=name)
    files = {"handler.py": DOUBLED, "c.yaml": "v2_rows: batch"}
    make_archive(store / "batch.mar", files, modelName="batch", configFile="c.yaml")
    http, grpc_port = free_ports(2)
    script = Path(__file__).with_name("plain_kserve.py")
    ports = ["--http_port", str(http), "--grpc_port", str(grpc_port)]
    plain = subprocess.Popen(
        [sys.executable, script, *ports],
        env={**os.environ, "STORE": str(store), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with (
            Server(store) as server,
            server.client() as ours,
            server.client(f"http://127.0.0.1:{http}") as theirs,
            grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}") as our_channel,
            grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as their_channel,
        ):
            _wait(theirs, plain)
            stubs = (GRPCInferenceServiceStub(our_channel), GRPCInferenceServiceStub(their_channel))
            yield Pair((ours, theirs), stubs)
    finally:
        plain.send_signal(signal.SIGTERM)
        try:
            plain.wait(40)
        except subprocess.TimeoutExpired:
            plain.kill()
            raise


def _wait(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Until it is ready; it does not say so in any other way."""
    ends = time.monotonic() + 50
    while process.poll() is None and time.monotonic() < ends:
        try:
            if client.get("/v2/models/identity/ready").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("the plain server did not start")


def told(answer: httpx.Response) -> Any:
    """A JSON answer without what the SDK adds to it: members that are null."""
    return _without_null(answer.json())


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_null(v) for k, v in value.items() if v is not None and v != {}}
    return [_without_null(v) for v in value] if isinstance(value, list) else value


def tensor(datatype: str, values: Any, name: str = "x") -> dict[str, Any]:
    flat = [v.decode() if isinstance(v, bytes) else v for v in values.reshape(-1).tolist()]
    return {"name": name, "datatype": datatype, "shape": list(values.shape), "data": flat}


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [1, "a", None, [1.5], {"k": [True]}]},
        {"instances": []},
        {"inputs": [tensor("FP32", VALUES["FP32"])], "id": "7"},
    ],
)
def test_v1(pair: Pair, body: dict[str, Any]) -> None:
    body = {"id": "7", **body}
    ours, plain = pair.post("/v1/models/identity:predict", json=body)
    assert ours.status_code == plain.status_code == 200
    expected = told(ours)
    expected.pop("model_version", None)
    answered = told(plain)
    answered.pop("model_version", None)
    assert answered == expected


def test_v1_explain(pair: Pair) -> None:
    ours, plain = pair.post("/v1/models/why:explain", json={"instances": [{"data": 1}]})
    assert told(ours) == told(plain) == {"explanations": ["why 1"]}


def test_v1_bytes(pair: Pair) -> None:
    headers = {"content-type": "text/plain"}
    ours, plain = pair.post("/v1/models/identity:predict", content=b"words", headers=headers)
    assert told(ours) == told(plain) == {"predictions": [{"data": "words"}]}


@pytest.mark.parametrize("model", ["headers", "nobody"])
@pytest.mark.parametrize("path", ["/v1/models/{}:predict", "/v2/models/{}/infer"])
def test_headers_and_parameters(pair: Pair, path: str, model: str) -> None:
    words = np.array([b"flavour"], object)
    body = (
        {"instances": [{"data": "flavour"}], "parameters": {"flavour": "sour"}}
        if "v1" in path
        else {"id": "7", "inputs": [tensor("BYTES", words)], "parameters": {"flavour": "sour"}}
    )
    ours, plain = pair.post(path.format(model), json=body)
    assert ours.status_code == plain.status_code == (404 if model == "nobody" else 200)
    assert told(ours) == told(plain)
    assert ours.headers.get("x-asked-for") == plain.headers.get("x-asked-for")


@pytest.mark.parametrize("datatype", TYPED)
def test_v2_json(pair: Pair, datatype: str) -> None:
    values = np.array([["a", "é"]], object) if datatype == "BYTES" else VALUES[datatype]
    body = {"id": "7", "inputs": [tensor(datatype, values)]}
    ours, plain = pair.post("/v2/models/identity/infer", json=body)
    assert plain.status_code == 200, plain.text
    assert told(plain) == told(ours)


@pytest.mark.parametrize("datatype", [name for name in VALUES if name not in ("BF16", "BYTES")])
@pytest.mark.parametrize("output", [None, {"binary_data": True}, {"binary_data": False}, {}])
def test_v2_binary(pair: Pair, datatype: str, output: dict[str, bool] | None) -> None:
    values = VALUES[datatype]
    sized = {"parameters": {"binary_data_size": values.nbytes}}
    given = {"name": "x", "datatype": datatype, "shape": list(values.shape), **sized}
    body: dict[str, Any] = {"id": "7", "inputs": [given]}
    body["parameters"] = {"binary_data_output": True}
    if output is not None:
        body["outputs"] = [{"name": "x", "parameters": output}]
    head = json.dumps(body).encode()
    headers = {LENGTH: str(len(head)), "content-type": "application/octet-stream"}
    content = head + values.tobytes()
    ours, plain = pair.post("/v2/models/identity/infer", content=content, headers=headers)
    assert plain.status_code == 200, plain.text
    (our_head, our_blob), (plain_head, plain_blob) = map(_parts, (ours, plain))
    assert plain_head == our_head
    assert plain_blob == our_blob


def _parts(answer: httpx.Response) -> tuple[Any, bytes]:
    length = int(answer.headers.get(LENGTH, len(answer.content)))
    return _without_null(json.loads(answer.content[:length])), answer.content[length:]


@pytest.mark.parametrize("outputs", [["total"], ["total", "doubled"], ["other"]])
def test_outputs(pair: Pair, outputs: list[str]) -> None:
    wanted = [{"name": name} for name in outputs]
    body = {"id": "7", "inputs": [tensor("FP32", VALUES["FP32"])], "outputs": wanted}
    ours, plain = pair.post("/v2/models/named/infer", json=body)
    assert plain.status_code == ours.status_code
    assert told(plain) == told(ours)


def test_batches(pair: Pair) -> None:
    body = {"id": "7", "inputs": [tensor("INT8", np.array([[1, 2], [3, 4]]))]}
    ours, plain = pair.post("/v2/models/batch/infer", json=body)
    assert told(plain) == told(ours)
    assert told(ours)["outputs"][0]["data"] == [2, 4, 6, 8]


@pytest.mark.parametrize("what", ["crash", "400", "500"])
@pytest.mark.parametrize("path", ["/v1/models/moody:predict", "/v2/models/moody/infer"])
def test_errors(pair: Pair, path: str, what: str) -> None:
    words = np.array([what.encode()], object)
    ours, plain = pair.post(
        path,
        json={"instances": [{"data": what}]}
        if "v1" in path
        else {"inputs": [tensor("BYTES", words)]},
    )
    assert plain.status_code == ours.status_code
    assert told(plain) == told(ours)


def test_a_status_that_the_sdk_has_no_word_for(pair: Pair) -> None:
    ours, plain = pair.post("/v1/models/moody:predict", json={"instances": [{"data": "418"}]})
    assert plain.status_code == ours.status_code == 418
    assert told(plain) == told(ours)


@pytest.mark.parametrize(
    "bad",
    [
        {"shape": [7]},
        {"data": ["x"], "shape": [1]},
        {"datatype": "INT8"},
    ],
)
def test_bad_tensors(pair: Pair, bad: dict[str, Any]) -> None:
    body = {"inputs": [{**tensor("FP32", VALUES["FP32"]), **bad}]}
    ours, plain = pair.post("/v2/models/identity/infer", json=body)
    assert plain.status_code == ours.status_code == 400
    assert told(plain) == told(ours)


# --- gRPC ---


def infer(stub: Any, request: ModelInferRequest) -> Any:
    """The response, or the status that it was refused with."""
    try:
        return stub.ModelInfer(request)
    except grpc.RpcError as error:
        return error.code(), error.details()


@pytest.mark.parametrize("datatype", [name for name in VALUES if name not in ("BF16", "BYTES")])
def test_grpc_raw(pair: Pair, datatype: str) -> None:
    values = VALUES[datatype]
    request = ModelInferRequest(
        model_name="identity", id="7", raw_input_contents=[values.tobytes()]
    )
    request.inputs.add(name="x", datatype=datatype, shape=values.shape)
    ours, plain = (infer(stub, request) for stub in pair.grpc)
    assert plain.raw_output_contents[0] == values.tobytes()
    assert plain == ours


@pytest.mark.parametrize("verb", ["predict", "explain", "guess"])
def test_grpc_typed(pair: Pair, verb: str) -> None:
    request = ModelInferRequest(model_name="why", id="7")
    added = request.inputs.add(name="x", datatype="BYTES", shape=[1])
    added.contents.bytes_contents.append(b"a")
    request.parameters["verb"].string_param = verb
    ours, plain = (infer(stub, request) for stub in pair.grpc)
    assert plain == ours


@pytest.mark.parametrize("what", ["crash", "400", "404", "418", "503"])
def test_grpc_errors(pair: Pair, what: str) -> None:
    request = ModelInferRequest(model_name="moody", id="7")
    added = request.inputs.add(name="x", datatype="BYTES", shape=[1])
    added.contents.bytes_contents.append(what.encode())
    ours, plain = (infer(stub, request) for stub in pair.grpc)
    assert isinstance(ours[0], grpc.StatusCode)
    assert plain == ours
