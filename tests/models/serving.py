"""A registry over a folder of archives whose handlers load when they are let."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kserve_torch.messages import Request
from kserve_torch.models.registry import Registry
from kserve_torch.settings import load_settings
from kserve_torch.settings.models import StartupModel

from ..threads import workers_end

#: Is initialised when the file is there.
GATED = """
import pathlib, time
def handle(data, context):
    if data is None:
        while not pathlib.Path({gate!r}).exists():
            time.sleep(0.005)
    return data
"""


class Gate:
    """What `GATED` handlers wait for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        self.path.touch()

    def guards(self, handler: str) -> dict[str, str]:
        """The files of an archive."""
        return {"handler.py": handler.format(gate=str(self.path))}


@asynccontextmanager
async def serving(store: Path, *options: str, gate: Gate | None = None) -> AsyncIterator[Registry]:
    """A registry over ``store``; the gate is open when it ends."""
    settings = load_settings(["--model_store", str(store), *options], {}, "kserve_torch")
    async with workers_end():
        registry = Registry(settings)
        try:
            yield registry
        finally:
            if gate:
                gate.open()
            await registry.close(5.0)
    assert not registry.workdir.exists()


async def answer(registry: Registry, name: str = "m") -> str:
    reply = await registry.submit(Request(id="1", model=name, rows=[{"data": "x"}]))
    return reply.version


def startup(*files: str, **more: Any) -> list[StartupModel]:
    return [StartupModel(name=None, file=file, **more) for file in files]
