"""The server as the runtime's manifest starts it: command, environment, user, read-only folders."""

import base64
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import grpc
import httpx
import pytest
from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from ..server import ROOT, Server, ports_of_a_server
from . import manifests, test_manifests, test_monitoring

pytestmark = pytest.mark.timeout(180)  # the first test waits for the start

PICTURE = (ROOT / "handlers/mnist/test_data/7.png").read_bytes()
#: The image's program, from the sources.
TORCHSERVE = f"""#!/bin/sh
exec {sys.executable} -c 'from kserve_torch.cli import program; program("torchserve")' "$@"
"""


def as_user() -> list[str]:
    """What makes a command run as uid 1000; only root can do that.

    It may read everything, as root's interpreter can lie in root's home, and writes as uid 1000.
    """
    if os.getuid() or not shutil.which("setpriv"):
        return []
    reading = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    return ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", *reading]


def read_only(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.fixture(scope="module")
def models(mnist_store: Path) -> Iterator[Path]:
    """What KServe mounts at /mnt/models, readable to every user and writable to none."""
    with tempfile.TemporaryDirectory(prefix="models-") as name:
        folder = Path(name)
        shutil.copytree(mnist_store, folder / "model-store")
        (folder / "config").mkdir()
        properties = (manifests.DEPLOY / "storage/config.properties").read_text()
        (folder / "config/config.properties").write_text(properties)
        read_only(folder)
        yield folder
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """A folder that nobody can write to, with the image's program in it."""
    with tempfile.TemporaryDirectory(prefix="image-") as name:
        folder = Path(name)
        (folder / "torchserve").write_text(TORCHSERVE)
        folder.chmod(0o555)
        (folder / "torchserve").chmod(0o555)
        yield folder
        folder.chmod(0o755)


def container(image: Path, models: Path, cwd: Path, **settings: str) -> Server:
    """The server as the runtime's container starts it in ``cwd``."""
    ports = ports_of_a_server()
    arguments = [a.replace("/mnt/models", str(models)) for a in test_manifests.STOCK]
    environment = test_manifests.rendered_environment("kservev2", "v2") | {
        "HOME": "/tmp",
        "PATH": f"{image}:{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TS_DRAIN_SECONDS": "0",  # nobody else sends it requests
        "TS_HTTP_PORT": str(ports["http"]),
        "TS_GRPC_PORT": str(ports["grpc"]),
    }
    command = [*as_user(), str(ROOT / "deploy/image/entrypoint.sh"), *arguments]
    return Server(
        None, command=command, env=environment | settings, cwd=cwd, wait=False, ports=ports
    )


@pytest.fixture(scope="module")
def server(image: Path, models: Path) -> Iterator[Server]:
    with container(image, models, image) as running:
        running.wait_started(120)
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as http:
        yield http


@pytest.mark.parametrize("probe", ["readinessProbe", "livenessProbe"])
def test_probe_succeeds(client: httpx.Client, probe: str) -> None:
    path = test_manifests.CONTAINER[probe]["httpGet"]["path"]
    assert client.get(path).status_code == 200


def test_v1_predicts(client: httpx.Client) -> None:
    body = {"instances": [{"data": base64.b64encode(PICTURE).decode()}]}
    answer = client.post("/v1/models/mnist:predict", json=body)
    assert answer.json() == {"predictions": [7]}


def test_v2_predicts(client: httpx.Client) -> None:
    picture = base64.b64encode(PICTURE).decode()
    tensor = {"name": "input-0", "shape": [1], "datatype": "BYTES", "data": [picture]}
    answer = client.post("/v2/models/mnist/infer", json={"inputs": [tensor]}).json()
    assert answer["outputs"][0]["data"] == [7]


@pytest.mark.parametrize("port", ["grpc", "native_grpc"])
def test_grpc_predicts(server: Server, port: str) -> None:
    tensor = ModelInferRequest.InferInputTensor(name="input-0", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(PICTURE)
    with grpc.insecure_channel(f"127.0.0.1:{server.ports[port]}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(ModelInferRequest(model_name="mnist", inputs=[tensor]), timeout=30)
    assert list(answer.outputs[0].contents.int64_contents) == [7]


def test_every_query_finds_its_family(server: Server, client: httpx.Client) -> None:
    test_v1_predicts(client)
    with server.client(f"http://127.0.0.1:{server.ports['metrics']}") as metrics:
        text = metrics.get("/metrics").text
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    suffixes = ("", "_bucket", "_count", "_sum")
    exported = {family + suffix for family in families for suffix in suffixes}
    for query in test_monitoring.QUERIES.values():
        read = test_monitoring.selectors(test_monitoring.parsed(query))
        assert {selector.name for selector in read} <= exported | {"up"}
    assert '\nts_inference_requests_total{model_name="mnist",model_version="default",' in text
    assert '\nqueue_depth{model_name="mnist",model_version="1.0"} 0.0\n' in text


def test_server_is_an_ordinary_user(server: Server) -> None:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    uid = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1]
    assert int(uid) == (1000 if as_user() else os.getuid())


def test_nothing_was_written_beside_the_models(server: Server, models: Path) -> None:
    files = {str(path.relative_to(models)) for path in models.rglob("*")}
    assert files == {
        *("config", "config/config.properties", "model-store"),
        "model-store/mnist.mar",
    }


def test_keys_are_in_a_working_directory_that_can_be_written_to(image: Path, models: Path) -> None:
    on = {"TS_DISABLE_TOKEN_AUTHORIZATION": "false"}
    with tempfile.TemporaryDirectory(prefix="scratch-") as name:
        Path(name).chmod(0o777)  # like the volume at /tmp
        with container(image, models, Path(name), **on) as running, running.client() as http:
            running.wait_started(120)
            assert (Path(name) / "key_file.json").exists()
            for probe in ("readinessProbe", "livenessProbe"):
                test_probe_succeeds(http, probe)
            assert http.get("/ping").status_code == 400


def test_multi_model_runtime_loads_and_unloads_as_kserves_agent_asks(
    mnist_store: Path, tmp_path: Path
) -> None:
    patches = manifests.read(manifests.DEPLOY / "overlays/multi-model/multi-model.yaml")[0]
    changes = {patch["path"]: patch["value"] for patch in patches}
    arguments = [
        a.replace("/mnt/models", str(tmp_path)) for a in changes["/spec/containers/0/args"]
    ]
    probe = changes["/spec/containers/0/readinessProbe/httpGet/path"]
    models = "/v2/repository/models/mnist"
    with Server(None, *arguments) as running, running.client() as http:
        assert http.get(probe).status_code == 200
        for form in ("archive", "unpacked"):
            if form == "archive":
                (tmp_path / "mnist").mkdir()
                shutil.copy(mnist_store / "mnist.mar", tmp_path / "mnist/v1.mar")
            else:
                with ZipFile(mnist_store / "mnist.mar") as archive:
                    archive.extractall(tmp_path / "mnist")
            assert http.post(f"{models}/load", json={}).status_code == 200
            test_v1_predicts(http)
            shutil.rmtree(tmp_path / "mnist")
            assert http.post(f"{models}/unload", json={}).status_code == 200
            assert http.get("/v2/models/mnist/ready").status_code == 404
