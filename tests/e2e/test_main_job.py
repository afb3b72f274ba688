"""The main job: the MNIST archive behind KServe's protocols, spoken to as the documents do."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from ..documents import KSERVE_CONFIG
from ..server import ROOT, Server

REQUESTS = ROOT / "kf_request_json"
TEST_DATA = ROOT / "handlers/mnist/test_data"

#: The picture in the documents that users come from, whose base64 text is damaged.
CORRUPT = (
    "iVBORw0eKGgoAAAANSUhEUgAAABwAAAAcCAAAAABXZoBIAAAAw0lEQVR4nGNgGFggVVj4/y8Q2GOR83n+58/fP0DwcSq"
    "mpNN7oOTJw6f+/H2pjUU2JCSEk0EWqN0cl828e/FIxvz9/9cCh1zS5z9/G9mwyzl/+PNnKQ45nyNAr9ThMHQ/UG4tDof"
    "uB4bQIhz6fIBenMWJQ+7Vn7+zeLCbKXv6z59NOPQVgsIcW4QA9YFi6wNQLrKwsBebW/68DJ388Nun5XFocrqvIFH59+X"
    "hBAxThTfeB0r+vP/QHbuDCgr2JmOXoSsAAKK7bU3vISS4AAAAAElFTkSuQmCC"
)


@pytest.fixture(scope="module")
def server(mnist_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on KServe's layout with the documents' configuration."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(mnist_store, folder / "model-store")
    (folder / "config").mkdir()
    (folder / "config/config.properties").write_text(KSERVE_CONFIG)
    with Server(folder) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.inference_url) as http:
        yield http


def picture(digit: int) -> str:
    return base64.b64encode((TEST_DATA / f"{digit}.png").read_bytes()).decode()


def tensor(digit: int) -> list[list[list[float]]]:
    from PIL import Image

    pixels = np.asarray(Image.open(TEST_DATA / f"{digit}.png"), np.float32) / 255
    return ((pixels - 0.1307) / 0.3081)[None].tolist()  # type: ignore[no-any-return]


def sent(name: str) -> bytes:
    return (REQUESTS / name).read_bytes()


def test_the_model_is_ready(client: httpx.Client) -> None:
    assert client.get("/v1/models/mnist").json() == {"name": "mnist", "ready": True}
    assert client.get("/v2/models/mnist/ready").json() == {"name": "mnist", "ready": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v1/models").json() == {"models": ["mnist"]}


def test_there_are_no_docs_unless_they_are_asked_for(client: httpx.Client) -> None:
    assert client.get("/docs").status_code == 404
    assert client.get("/openapi.json").status_code == 404


def test_v1_predict(client: httpx.Client) -> None:
    answer = client.post("/v1/models/mnist:predict", content=sent("v1/mnist.json"))
    assert (answer.status_code, answer.json()) == (200, {"predictions": [2]})
    assert answer.headers["content-type"] == "application/json"


def test_v1_static_batch(client: httpx.Client) -> None:
    answer = client.post("/v1/models/mnist:predict", content=sent("v1/mnist_batch.json"))
    assert answer.json() == {"predictions": [2, 7]}


def test_v1_explain(client: httpx.Client) -> None:
    answer = client.post("/v1/models/mnist:explain", content=sent("v1/mnist.json"))
    assert answer.status_code == 200
    explanations = np.array(answer.json()["explanations"])
    assert explanations.shape == (1, 1, 28, 28)
    assert np.abs(explanations).max() > 0


def test_v2_tensor(client: httpx.Client) -> None:
    inputs = [{"name": "input-0", "shape": [1, 28, 28], "datatype": "FP32", "data": tensor(4)}]
    answer = client.post("/v2/models/mnist/infer", json={"id": "an-id", "inputs": inputs}).json()
    assert answer == {
        "id": "an-id",
        "model_name": "mnist",
        "model_version": "1.0",
        "outputs": [{"name": "input-0", "datatype": "INT64", "shape": [1], "data": [4]}],
    }


@pytest.mark.parametrize("shape", [[1], [-1]])
def test_v2_bytes(client: httpx.Client, shape: list[int]) -> None:
    inputs = [{"name": "a", "shape": shape, "datatype": "BYTES", "data": [picture(5)]}]
    answer = client.post("/v2/models/mnist/versions/1.0/infer", json={"inputs": inputs}).json()
    assert answer["outputs"] == [{"name": "a", "datatype": "INT64", "shape": [1], "data": [5]}]
    assert answer["id"]


def test_v2_two_inputs_two_outputs(client: httpx.Client) -> None:
    inputs = [
        {"name": "a", "shape": [1, 28, 28], "datatype": "FP32", "data": tensor(1)},
        {"name": "b", "shape": [1, 28, 28], "datatype": "FP32", "data": tensor(0)},
    ]
    outputs = client.post("/v2/models/mnist/infer", json={"inputs": inputs}).json()["outputs"]
    assert [(output["name"], output["data"]) for output in outputs] == [("a", [1]), ("b", [0])]


def test_v2_explain(client: httpx.Client) -> None:
    inputs = [{"name": "input-0", "shape": [1, 28, 28], "datatype": "FP32", "data": tensor(2)}]
    answer = client.post("/v2/models/mnist/explain", json={"inputs": inputs}).json()
    [output] = answer["outputs"]
    assert (output["name"], output["shape"]) == ("input-0", [1, 28, 28])
    assert len(output["data"]) == 784


def test_native_upload(client: httpx.Client) -> None:
    answer = client.put("/predictions/mnist", content=(TEST_DATA / "8.png").read_bytes())
    assert (answer.status_code, answer.json()) == (200, 8)


def test_a_corrupt_image_is_named(client: httpx.Client) -> None:
    body = {"instances": [{"data": picture(1)}, {"data": CORRUPT}]}
    answer = client.post("/v1/models/mnist:predict", json=body)
    assert answer.status_code == 400
    assert answer.json() == {"error": "instances[1].data: not valid base64"}
