"""Models of all formats, and outputs of all kinds, on a GPU."""

import inspect
import io

import numpy as np
import pytest
import torch

from ..makers import make_archive
from ..server import Server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).tanh()


def scripted() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(Net().eval(), torch.zeros(2, 8)), file)
    return file.getvalue()


def exported() -> bytes:
    file = io.BytesIO()
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        Net().eval(), (torch.zeros(2, 8),), dynamic_shapes={"x": {0: rows}}
    )
    torch.export.save(program, file)
    return file.getvalue()


EAGER = f"import torch\n\n{inspect.getsource(Net)}"
COMPILED = "pt2:\n  compile:\n    enable: true\n    backend: inductor\n"


CONFIGS = {
    "jit": "minWorkers: 1\n",
    "exported": "minWorkers: 1\n",
    "compiled": COMPILED,
    "graphs": COMPILED + "    mode: reduce-overhead\n",
}


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:.*torch.jit")
@pytest.mark.parametrize("name", CONFIGS)
def test_formats(tmp_path, name):
    files: dict[str, str | bytes] = {"model-config.yaml": CONFIGS[name]}
    if name == "jit":
        files["m.pt"], members = scripted(), {"serializedFile": "m.pt"}
    elif name == "exported":
        files["m.pt2"], members = exported(), {"serializedFile": "m.pt2"}
    else:
        files["model.py"], members = EAGER, {"modelFile": "model.py"}
    store = tmp_path / "store"
    make_archive(
        store / "m.mar", files, **members, handler="base_handler", configFile="model-config.yaml"
    )
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 8)).round(3)
    expected = Net()(torch.tensor(rows, dtype=torch.float32)).tolist()
    with Server(store) as server, server.client() as client:
        client.timeout = 200
        for count in (3, 1, 2, 3):
            body = {"instances": [{"data": row.tolist()} for row in rows[:count]]}
            response = client.post("/v1/models/m:predict", json=body)
            assert response.status_code == 200, server.log
            assert np.allclose(response.json()["predictions"], expected[:count], atol=3e-3)


TENSORS = """
import torch
KINDS = {"FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64,
         "INT64": torch.int64, "UINT8": torch.uint8, "BOOL": torch.bool}
def handle(data, context):
    if data is None:
        return
    x = torch.tensor([[0, 1], [1, 0]], device="cuda")
    return [{name: x.to(dtype) for name, dtype in KINDS.items()}]
"""


def test_tensors_on_the_gpu_as_outputs(tmp_path):
    store = tmp_path / "store"
    make_archive(store / "m.mar", {"handler.py": TENSORS})
    body = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]}
    with Server(store) as server, server.client() as client:
        outputs = client.post("/v2/models/m/infer", json=body).json()["outputs"]
    kinds = {kind: kind for kind in ("FP32", "FP64", "INT64", "UINT8", "BOOL")}
    # JSON has no FP16.
    assert {each["name"]: each["datatype"] for each in outputs} == {"FP16": "FP32", **kinds}
    assert all(np.ravel(each["data"]).tolist() == [0, 1, 1, 0] for each in outputs)
