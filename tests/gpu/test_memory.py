"""Memory of the GPU: one copy of the weights, nothing left behind, batches that do not fit."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ..makers import make_archive
from ..server import Server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]
MEGABYTE = 2**20

LARGE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8192, 8192, bias=False)  # 256 MiB
        torch.nn.init.ones_(self.layer.weight)
    def forward(self, x):
        return self.layer(x).sum(1)
"""
FOUR_WORKERS = "minWorkers: 4\nmaxWorkers: 4\ndeviceIds: [0]\n"

GREEDY = """
import torch
class Handler:
    sizes = []
    def initialize(self, context):
        self.total = torch.cuda.mem_get_info()[1]
    def handle(self, data, context):
        shares = [float(row["data"]) for row in data]
        self.sizes.append(len(data))
        block = torch.empty(int(self.total * sum(shares)), dtype=torch.uint8, device="cuda")
        return [[share, self.sizes] for share in shares]
"""
BATCHES = "batchSize: 4\nmaxBatchDelay: 10000\nminWorkers: 1\nmaxWorkers: 1\ndeviceIds: [0]\n"


def allocated(server: Server) -> float:
    """Bytes in tensors on the first GPU, as the server's metric says."""
    with server.client() as client:
        for line in client.get("/metrics").text.splitlines():
            if line.startswith('cuda_memory_allocated_bytes{device="0"}'):
                return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_workers_share_the_weights_and_an_unload_frees_them(tmp_path):
    store = tmp_path / "store"
    files = {"model.py": LARGE, "model-config.yaml": FOUR_WORKERS}
    members = {"handler": "base_handler", "modelFile": "model.py"}
    make_archive(store / "m.mar", files, **members, configFile="model-config.yaml")
    with Server(store) as server, server.client() as client:
        rows = {"instances": [{"data": [1.0] * 8192}]}
        for _ in range(3):
            assert client.post("/v1/models/m:predict", json=rows).status_code == 200
            assert 256 * MEGABYTE <= allocated(server) < 512 * MEGABYTE  # with cuBLAS's workspaces
            assert client.post("/v2/repository/models/m/unload").status_code == 200
            assert allocated(server) < 256 * MEGABYTE
            assert client.post("/v2/repository/models/m/load").status_code == 200


def test_a_batch_that_does_not_fit_is_divided(tmp_path):
    store = tmp_path / "store"
    make_archive(
        store / "m.mar",
        {"handler.py": GREEDY, "model-config.yaml": BATCHES},
        configFile="model-config.yaml",
    )
    with Server(store) as server, server.client() as client:

        def ask(share: float):
            return client.post("/v1/models/m:predict", json={"instances": [{"data": share}]})

        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(ask, [0.3, 0.31, 0.32, 0.33]))
        assert [answer.json()["predictions"][0][0] for answer in answers] == [0.3, 0.31, 0.32, 0.33]
        sizes = max((answer.json()["predictions"][0][1] for answer in answers), key=len)
        assert sizes[0] == 4
        assert sorted(sizes[1:], reverse=True)[0] < 4
        alone = ask(1.5)
        assert (alone.status_code, "out of memory" in alone.text.lower()) == (507, True)
        assert ask(0.5).json()["predictions"][0][0] == 0.5
        assert client.get("/v2/health/live").json()["live"]
        assert allocated(server) < 40 * MEGABYTE


def test_metrics_of_the_gpu(tmp_path):
    store = tmp_path / "store"
    files = {"model.py": LARGE, "model-config.yaml": "deviceIds: [0]\n"}
    members = {"handler": "base_handler", "modelFile": "model.py"}
    make_archive(store / "m.mar", files, **members, configFile="model-config.yaml")
    with Server(store) as server, server.client() as client:
        values = {
            line.split("{")[0]: float(line.rsplit(" ", 1)[1])
            for line in client.get("/metrics").text.splitlines()
            if "GPU" in line and not line.startswith("#") and 'DeviceId="0"' in line
        }
    total = torch.cuda.mem_get_info()[1] / MEGABYTE
    assert 256 < values["GPUMemoryUsed"] <= total
    assert 0 < values["GPUMemoryUtilization"] <= 100
    assert 0 <= values.get("GPUUtilization", 0) <= 100
