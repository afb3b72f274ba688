"""Fixtures of the tests that break things."""

from collections.abc import Callable, Iterator

import pytest

from .actor import Gate


@pytest.fixture
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Gate]]:
    """Makes gates; handlers that still wait at the end are let go."""
    made: list[Gate] = []
    folder = tmp_path_factory.mktemp("gates")

    def make() -> Gate:
        made.append(Gate(folder / f"gate-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.release()
