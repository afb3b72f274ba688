"""Servers of one store: one that uses the GPU, one that may not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..server import Server


@pytest.fixture(scope="session")
def on_gpu(handler_store: Path) -> Iterator[Server]:
    with Server(handler_store) as server:
        yield server


@pytest.fixture(scope="session")
def on_cpu(handler_store: Path) -> Iterator[Server]:
    config = handler_store.parent / "cpu.properties"
    config.write_text("number_of_gpu=0\n")
    with Server(handler_store, "--ts-config", str(config)) as server:
        yield server
