"""Archives that cannot be loaded: one clear reason everywhere, and the others serve."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ..makers import ECHO, make_archive
from ..server import Server

NETWORK = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
"""
HANDLER = "from ts.torch_handler.base_handler import BaseHandler\n"

#: What is wrong with an archive, and the words that its reason must have.
BROKEN = {
    "missing_file": ("weights.pt", "not in the archive"),
    "syntax_error": ("handler.py, line 2", "SyntaxError"),
    "absent_package": ("no_such_package_anywhere",),
    "two_classes": ("handler.py", "class"),
    "wrong_weights": ("weights.pt", "other"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    torch.save({"other": torch.zeros(1)}, folder / "weights.pt")
    weights = (folder / "weights.pt").read_bytes()
    store = folder / "store"
    make_archive(store / "good.mar", {"handler.py": ECHO}, modelName="good")
    eager = {"handler": "base_handler", "modelFile": "net.py", "serializedFile": "weights.pt"}
    archives = {
        "missing_file": ({"net.py": NETWORK}, eager),
        "syntax_error": ({"handler.py": "import os\ndef handle(data, context:\n"}, {}),
        "absent_package": ({"handler.py": "import no_such_package_anywhere\n" + ECHO}, {}),
        "two_classes": (
            {"handler.py": HANDLER + "class A(BaseHandler): ...\nclass B(BaseHandler): ...\n"},
            {},
        ),
        "wrong_weights": ({"net.py": NETWORK, "weights.pt": weights}, eager),
    }
    for name, (files, model) in archives.items():
        make_archive(store / f"{name}.mar", files, modelName=name, **model)
    return store


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    with Server(store, env={"TS_ENABLE_MODEL_API": "true"}) as started:
        yield started


def reasons(server: Server) -> dict[str, str]:
    with server.client() as client:
        index = client.post("/v2/repository/index", json={}).json()
    models = index["models"] if isinstance(index, dict) else index
    return {
        model["name"]: model.get("reason", "")
        for model in models
        if model["state"] == "UNAVAILABLE"
    }


def test_the_good_one_serves(server: Server) -> None:
    with server.client() as client:
        response = client.post("/v1/models/good:predict", json={"instances": [{"data": 1}]})
        assert response.json() == {"predictions": [1]}
        assert client.get("/v2/models/good/ready").status_code == 200
        assert client.get("/v2/health/ready").status_code == 503


@pytest.mark.parametrize("name", BROKEN)
def test_the_index_the_log_requests_and_loads_say_why(server: Server, name: str) -> None:
    reason = reasons(server)[name]
    assert all(word in reason for word in BROKEN[name]), reason
    assert "\n" not in reason
    assert "/" not in reason
    said = f"model {name}.mar failed to load: {reason}"
    assert [line for line in server.lines if " ERROR " in line and line.endswith(said)]
    with server.client() as client:
        asked = client.post(f"/v1/models/{name}:predict", json={"instances": [1]})
        loaded = client.post(f"/v2/repository/models/{name}/load")
    assert asked.status_code == 503
    assert reason in asked.json()["error"]
    assert loaded.status_code >= 400
    assert reason in loaded.json()["error"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_registration_is_told(server: Server, name: str) -> None:
    reason = reasons(server)[name]
    query = {"url": f"{name}.mar", "model_name": f"{name}_again", "initial_workers": 1}
    with server.client(server.inference_url) as client:
        answer = client.post("/models", params=query)
    assert answer.status_code >= 400
    assert reason in answer.json()["message"]
    assert f"{name}_again" not in reasons(server)
