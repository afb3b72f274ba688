"""Copies of one archive cost their weights and little else."""

import shutil
from pathlib import Path

import psutil
import pytest

from ..server import ROOT, Server

COPIES, AT_MOST = 10, 1.15
SAMPLE = ROOT / "kf_request_json" / "v1" / "mnist.json"

pytestmark = pytest.mark.timeout(150)


def test_ten_models_need_little_more_than_one(mnist_store: Path, tmp_path: Path) -> None:
    names = [f"mnist{number}" for number in range(COPIES)]
    for name in names:
        shutil.copy(mnist_store / "mnist.mar", tmp_path / f"{name}.mar")
    only_one = {"TS_LOAD_MODELS": "mnist0=mnist0.mar"}
    with Server(tmp_path, fresh=True, env=only_one) as server, server.client() as client:

        def resident_with(name: str) -> int:
            """Bytes of the server in memory after a prediction by one more model."""
            response = client.post(f"/v1/models/{name}:predict", content=SAMPLE.read_bytes())
            assert response.json() == {"predictions": [2]}
            return int(psutil.Process(server.process.pid).memory_info().rss)

        one = resident_with(names[0])
        for name in names[1:]:
            assert client.post(f"/v2/repository/models/{name}/load").status_code == 200
            ten = resident_with(name)
    assert ten <= AT_MOST * one, f"{ten / 2**20:.0f} MiB for {COPIES}, {one / 2**20:.0f} for one"
