"""A server with the models of `models`, for every client."""

from collections.abc import Iterator

import pytest

from ..server import Server
from .models import start


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start(tmp_path_factory.mktemp("clients")) as running:
        yield running
