"""Copies of one archive cost their weights and little else."""

import shutil
from pathlib import Path

import psutil
import pytest

from ..server import ROOT, Server

COPIES, AT_MOST = 10, 1.15
SAMPLE = ROOT / "kf_request_json" / "v1" / "mnist.json"

pytestmark = pytest.mark.timeout(150)


def resident(mnist_store: Path, folder: Path, copies: int) -> int:
    """Bytes in memory of a server with so many MNIST models, after a prediction by each."""
    folder.mkdir()
    names = [f"mnist{number}" for number in range(copies)]
    for name in names:
        shutil.copy(mnist_store / "mnist.mar", folder / f"{name}.mar")
    models = ",".join(f"{name}={name}.mar" for name in names)
    with Server(folder, env={"TS_LOAD_MODELS": models}) as server, server.client() as client:
        for name in names:
            response = client.post(f"/v1/models/{name}:predict", content=SAMPLE.read_bytes())
            assert response.json() == {"predictions": [2]}
        return int(psutil.Process(server.process.pid).memory_info().rss)


def test_ten_models_need_little_more_than_one(mnist_store: Path, tmp_path: Path) -> None:
    one = resident(mnist_store, tmp_path / "one", 1)
    ten = resident(mnist_store, tmp_path / "ten", COPIES)
    assert ten <= AT_MOST * one, f"{ten / 2**20:.0f} MiB for {COPIES}, {one / 2**20:.0f} for one"
