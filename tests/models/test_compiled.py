"""Archives that compile their model: what was compiled until it is ready must do for ever."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from kserve_torch.engine import threads
from kserve_torch.models.registry import Registry
from kserve_torch.runtime import torchstate

from ..makers import make_archive
from .test_registry import request, serving

MODEL = """
import torch
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(2, 2), torch.nn.ReLU())
"""
YAML = """
batchSize: 4
maxBatchDelay: 1
pt2: {compile: {enable: true, backend: eager}}
"""
SAMPLE = json.dumps({"instances": [[1.0, 2.0]]})


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads to try, also on a machine with one core."""
    monkeypatch.setattr(torchstate, "THREADS", 2)
    monkeypatch.setattr(threads, "thread_counts", lambda workers: (1, 2))


def archive(path: Path, **files: str) -> None:
    files = {"model.py": MODEL, "model-config.yaml": YAML, **files}
    members = {"handler": "base_handler", "modelFile": "model.py", "modelName": path.stem}
    make_archive(path, files, configFile="model-config.yaml", **members)


def compilations() -> Counter[str]:
    return Counter(torch._dynamo.utils.counters["frames"])


async def batch(registry: Registry, rows: int, name: str = "m") -> None:
    assert (await registry.submit(request(*[[1.0, 2.0]] * rows, name=name))).results


async def test_no_batch_of_any_size_is_compiled_anew(tmp_path: Path) -> None:
    archive(tmp_path / "m.mar", **{"warmup.json": SAMPLE})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        before = compilations()
        for rows in (4, 1, 3, 2) * 8:  # the number of threads is tried by every fifth or so
            await batch(registry, rows)
        assert compilations() == before


async def test_a_warm_up_that_no_batch_can_be_made_of_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler = """
from ts.torch_handler.base_handler import BaseHandler
class Handler(BaseHandler):
    def preprocess(self, data):
        if len(data) > 1:
            raise ValueError("one at a time")
        return super().preprocess(data)
"""
    files = {"model.py": MODEL, "model-config.yaml": YAML, "warmup.json": SAMPLE, "h.py": handler}
    make_archive(
        tmp_path / "m.mar",
        files,
        configFile="model-config.yaml",
        handler="h.py",
        modelFile="model.py",
    )
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        assert version.ready
        assert "warm-up: two samples in one batch: ValueError: one at a time" in caplog.text


async def test_one_models_compilations_do_not_count_for_another(tmp_path: Path) -> None:
    """All of them compile a function of torch's own: a Sequential's ``forward``."""
    names = [f"m{i}" for i in range(6)]
    for name in names:
        archive(tmp_path / f"{name}.mar")
    async with serving(tmp_path) as registry:
        before = compilations()
        for name in names:
            await registry.register(f"{name}.mar")
            await batch(registry, 4, name)
            await batch(registry, 1, name)
        new = compilations() - before
        assert new["ok"] == new["total"] == 2 * len(names)
