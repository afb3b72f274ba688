"""Fixtures for every test."""

import subprocess
import sys
from pathlib import Path

import pytest

from .server import ROOT


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests run on asyncio, as the server does."""
    return "asyncio"


@pytest.fixture(scope="session")
def mnist_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with ``mnist.mar`` in it."""
    store = tmp_path_factory.mktemp("mnist") / "model-store"
    command = [sys.executable, ROOT / "handlers/build_archive.py", "mnist", "--output", store]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return store
