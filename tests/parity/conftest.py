"""Fixtures of the comparison with TorchServe: the environment and an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..makers import make_archive
from .torchserve import Absent, python

ECHO = Path(__file__).with_name("echo.py")


@pytest.fixture(scope="session", autouse=True)
def _torchserve() -> None:
    try:
        python()
    except Absent as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def echo_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two versions of a model that echoes, a broken one, and one too large."""
    store = tmp_path_factory.mktemp("echo") / "model-store"
    files = {"echo.py": ECHO.read_text()}
    for file, version in (("echo.mar", "1.0"), ("echo2.mar", "2.0")):
        make_archive(store / file, files, modelName="echo", handler="echo.py", modelVersion=version)
    broken = {"handler.py": "def handle(data, context): (\n"}
    make_archive(store / "broken.mar", broken, modelName="broken")
    large = {"handler.py": "def handle(data, context):\n    raise MemoryError\n"}
    make_archive(store / "large.mar", large, modelName="large")
    return store
