"""The OpenAPI document of a running server: its examples, and schemathesis over all of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ..clients.models import IDENTITY
from ..makers import make_archive
from ..server import Server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


CONFIG = "signature: {inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one model, which fails no request: what fails then is the server."""
    store = tmp_path_factory.mktemp("docs")
    files = {"handler.py": IDENTITY, "model-config.yaml": CONFIG}
    model = {"modelName": "identity", "configFile": "model-config.yaml"}
    make_archive(store / "identity.mar", files, **model)
    return store


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    with Server(store, "--enable_docs_url", "true") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.inference_url) as client:
        yield client


def test_examples_work_as_they_stand(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    tried = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for name, example in _examples(operation):
                url = path.format(model_name=name, model_version="1.0")
                answer = client.request(method, url, json=example["value"])
                assert answer.status_code == 200, (url, answer.text)
                tried += 1
    assert tried


def _examples(operation: dict[str, Any]) -> Any:
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("examples", {}).items()


@pytest.mark.parametrize(
    ("parameters", "phases"),
    [
        ("", "coverage"),
        (
            '"path.model_name" = "identity"\n"path.model_version" = "1.0"\n',
            "examples,coverage,fuzzing",
        ),
    ],
    ids=["any name", "a model that is there"],
)
def test_schemathesis(server: Server, tmp_path: Path, parameters: str, phases: str) -> None:
    """Calls that only change models are left out: they would take them away from the others."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(f"[parameters]\n{parameters}")
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    ran = subprocess.run(
        [
            *(sys.executable, "-c", program, "--config-file", config),
            *("run", f"{server.inference_url}/openapi.json", "--no-color", "--seed", "1"),
            *("--checks", ",".join(CHECKS), "--max-examples", "5"),
            *("--phases", phases, "--exclude-path-regex", "load$"),
            *("--exclude-method", "PUT", "--exclude-method", "DELETE"),
        ],
        cwd=tmp_path,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
