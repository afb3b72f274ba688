"""Fixtures of the gRPC tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .serving import HANDLERS, Serving, write_archive


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with an archive per handler."""
    store = tmp_path_factory.mktemp("grpc-store")
    for name in HANDLERS:
        write_archive(store, name, name)
    write_archive(store, "base64", "mirror")
    write_archive(store, "broken", "raise ImportError('no such thing')")
    return store


@pytest.fixture(scope="session")
async def serving(store: Path) -> AsyncIterator[Serving]:
    """A server that all tests share which do not change it."""
    serving = Serving(store)
    await serving.start([*HANDLERS, "base64"])
    yield serving
    await serving.stop()
