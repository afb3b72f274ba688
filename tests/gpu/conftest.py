"""Servers of one store: one that uses the GPU, one that may not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..handlers.store import build_store
from ..server import Server


@pytest.fixture(scope="session")
def handlers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with every handler's archive."""
    return build_store(tmp_path_factory.mktemp("handlers"))


@pytest.fixture(scope="session")
def on_gpu(handlers: Path) -> Iterator[Server]:
    with Server(handlers) as server:
        yield server


@pytest.fixture(scope="session")
def on_cpu(handlers: Path) -> Iterator[Server]:
    config = handlers.parent / "cpu.properties"
    config.write_text("number_of_gpu=0\n")
    with Server(handlers, "--ts-config", str(config)) as server:
        yield server
