"""A model folder with real weights, a handler loaded from it, and batches sent through it."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image

from kserve_torch.messages import Request, Verb
from kserve_torch.namespace.loader import Namespace
from kserve_torch.runtime.context import Context
from kserve_torch.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(2 * 6 * 6, 3)

    def forward(self, x):
        return self.fc(torch.flatten(torch.tanh(self.conv(x)), 1))
"""


class Loaded:
    """A handler with its Context; `ask` sends it rows as the worker does."""

    def __init__(self, handler, context, measured, namespace):
        self.handler = handler
        self.context = context
        self.measured = measured
        self.namespace = namespace
        self.initialize()

    def initialize(self):
        with self.namespace.loading():
            self.handler.initialize(self.context)

    def ask(self, *rows, verb=Verb.PREDICT):
        request = Request(id="r", model="m", rows=rows, verb=verb)
        self.context.begin([request] * len(rows))
        return self.handler.handle(list(rows), self.context)

    def ask_apart(self, *rows):
        """The same with a request per row."""
        self.context.begin([Request(id="r", model="m", rows=[row]) for row in rows])
        return self.handler.handle(list(rows), self.context)


@pytest.fixture
def folder(tmp_path):
    """A model folder: net.py and weights.pt of an image model for [1, 8, 8], three classes."""
    (tmp_path / "net.py").write_text(MODEL)
    torch.manual_seed(0)
    namespace = Namespace(tmp_path)
    torch.save(namespace.import_module("net").Net().state_dict(), tmp_path / "weights.pt")
    namespace.close()
    return tmp_path


@pytest.fixture
def load():
    namespaces = []

    def load(handler, folder: Path, manifest=None, yaml=None) -> Loaded:
        files = {"modelFile": "net.py", "serializedFile": "weights.pt"}
        measured = []
        context = Context(
            "m",
            str(folder),
            {"model": {"modelName": "m", **(files if manifest is None else manifest)}},
            1,
            None,
            "0.12.0",
            metrics=MetricsCacheYamlImpl(model_name="m", measure=measured.append),
            model_yaml_config=yaml,
        )
        namespaces.append(Namespace(folder))
        return Loaded(handler, context, measured, namespaces[-1])

    yield load
    for namespace in namespaces:
        namespace.close()


@pytest.fixture
def png():
    """Bytes of a PNG of the given mode and size, the same for one seed."""

    def png(mode="L", size=(8, 8), seed=0):
        channels = len(mode) if mode in ("RGB", "RGBA", "LA") else 1
        count = size[0] * size[1] * channels
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randint(256, (count,), generator=generator, dtype=torch.uint8)
        buffer = io.BytesIO()
        Image.frombytes(mode, size, pixels.numpy().tobytes()).save(buffer, "PNG")
        return buffer.getvalue()

    return png
