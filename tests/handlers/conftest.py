"""One server for the tests of all handlers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..server import Server


@pytest.fixture(scope="session")
def server(handler_store: Path) -> Iterator[Server]:
    """A server of all these archives."""
    with Server(handler_store) as started:
        yield started
