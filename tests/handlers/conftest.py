"""One store and one server for the tests of all handlers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..server import Server
from .store import build_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model store with every handler's archive."""
    return build_store(tmp_path_factory.mktemp("handlers"))


@pytest.fixture(scope="session")
def server(store: Path) -> Iterator[Server]:
    """A server of all these archives."""
    with Server(store) as started:
        yield started
