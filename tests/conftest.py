"""Fixtures for every test."""

import subprocess
import sys
from pathlib import Path

import pytest

from .server import ROOT


#: Folders whose files share one costly server, and those that take longest; they are begun first.
TOGETHER = ("handlers",)
FIRST = ("handlers", "deploy", "e2e", "faults")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a server goes to one process when several run the tests."""
    tests = Path(__file__).parent

    def group(item: pytest.Item) -> str:
        path = item.path.relative_to(tests)
        return path.parts[0] if path.parts[0] in TOGETHER else path.as_posix()

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(tests).parts[0]
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=rank)


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
