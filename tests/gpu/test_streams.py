"""Workers compute side by side, each in its stream, and nobody reads what is not yet computed."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from ..makers import make_archive
from ..server import Server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]
CONFIG = "minWorkers: 4\nmaxWorkers: 4\ndeviceIds: [0]\nbatchSize: 8\nmaxBatchDelay: 5\n"

# Whole numbers below 2048 and permutations: exact, also where float32 products have 11 bits.
PERMUTES = """
import torch
class Handler:
    def initialize(self, context):
        torch.manual_seed(0)
        self.order = torch.randperm(512)
        self.weight = torch.eye(512)[self.order].to("cuda", non_blocking=True)
        self.stream = torch.cuda.current_stream()
    def handle(self, data, context):
        assert torch.cuda.current_stream() == self.stream != torch.cuda.default_stream()
        starts = torch.tensor([float(row["data"]) for row in data]).pin_memory()
        rows = starts.to("cuda", non_blocking=True)[:, None] + torch.arange(512, device="cuda")
        for _ in range(40):
            rows = rows @ self.weight
        return [[self.stream.cuda_stream, row] for row in rows.tolist()]
"""


def test_answers_are_right_under_load(tmp_path):
    store = tmp_path / "store"
    make_archive(
        store / "m.mar",
        {"handler.py": PERMUTES, "model-config.yaml": CONFIG},
        configFile="model-config.yaml",
    )
    streams, orders = set(), set()
    with Server(store) as server, server.client() as client:

        def ask(start: int) -> tuple[int, tuple[float, ...]]:
            response = client.post("/v1/models/m:predict", json={"instances": [{"data": start}]})
            ((stream, row),) = response.json()["predictions"]
            assert sorted(row) == [float(start + i) for i in range(512)]
            return stream, tuple(value - start for value in row)

        with ThreadPoolExecutor(24) as clients:
            for stream, order in clients.map(
                ask, itertools.islice(itertools.cycle(range(900)), 1500)
            ):
                streams.add(stream)
                orders.add(order)
    assert len(orders) == 1
    assert 1 < len(streams) <= 4


# The thread reads in the default stream what the worker's stream computes for a long time yet.
ON_A_THREAD = """
import threading
import torch
class Handler:
    def initialize(self, context):
        self.weight = torch.eye(4096, device="cuda")
        self.weight @ self.weight
    def handle(self, data, context):
        x = torch.full((4096, 4096), float(data[0]["data"]), device="cuda")
        for _ in range(200):
            x = x @ self.weight
        x = x + 1
        found = []
        thread = threading.Thread(target=lambda: found.append(x.sum().item() / 4096**2))
        thread.start()
        thread.join()
        y = torch.zeros(1, device="cuda")
        def late():
            for _ in range(200):
                self.weight @ self.weight
            y.add_(5)
        thread = threading.Thread(target=late)
        thread.start()
        thread.join()
        found.append((y + 1).item())
        return [found]
"""


def test_a_handlers_thread_reads_what_has_been_computed(tmp_path):
    """And the worker what the thread has, as on TorchServe, where there is one stream."""
    store = tmp_path / "store"
    make_archive(store / "m.mar", {"handler.py": ON_A_THREAD})
    with Server(store) as server, server.client() as client:
        for number in range(5):
            body = {"instances": [{"data": number}]}
            answer = client.post("/v1/models/m:predict", json=body)
            assert answer.json() == {"predictions": [[number + 1.0, 6.0]]}
