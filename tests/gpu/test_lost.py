"""A failed assertion on the GPU: liveness fails, models on the CPU still answer."""

import pytest

from ..makers import ECHO, make_archive
from ..server import Server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

ASSERTS = """
import torch
def handle(data, context):
    if data is None:
        return
    table = torch.arange(4, device="cuda")
    return [table[torch.tensor([row["data"]], device="cuda")].item() for row in data]
"""
EMBEDS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(4, 2)
    def forward(self, x):
        return self.words(x).sum((1, 2)) * 0
"""


def test_a_lost_gpu(tmp_path):
    store = tmp_path / "store"
    make_archive(
        store / "m.mar",
        {"handler.py": ASSERTS, "model-config.yaml": "deviceIds: [0]"},
        configFile="model-config.yaml",
    )
    make_archive(
        store / "echo.mar",
        {"handler.py": ECHO, "model-config.yaml": "deviceType: cpu"},
        configFile="model-config.yaml",
        modelName="echo",
    )
    with Server(store) as server, server.client() as client:

        def ask(model: str, data: int):
            body = {"instances": [{"data": data}]}
            return client.post(f"/v1/models/{model}:predict", json=body)

        assert ask("m", 2).json() == {"predictions": [2]}
        assert client.get("/v2/health/live").status_code == 200
        assert ask("m", 9).status_code == 500
        assert ask("m", 2).status_code == 503
        assert ask("echo", 2).json() == {"predictions": [2]}
        assert client.get("/v2/health/live").status_code == 503
        assert "GPU 0 is lost" in server.log


def test_a_token_that_the_model_does_not_know(tmp_path):
    """It would fail an assertion, too."""
    store = tmp_path / "store"
    members = {"handler": "base_handler", "modelFile": "model.py"}
    make_archive(store / "m.mar", {"model.py": EMBEDS}, **members)
    with Server(store) as server, server.client() as client:
        for tokens, status in (([1, 2], 200), ([1, 9], 400), ([-1, 2], 400), ([3, 0], 200)):
            body = {"instances": [{"data": tokens}]}
            response = client.post("/v1/models/m:predict", json=body)
            assert response.status_code == status, (tokens, response.text)
        assert client.get("/v2/health/live").status_code == 200
