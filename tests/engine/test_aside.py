"""Work on large bodies, beside the event loop."""

import threading

import pytest

from kserve_torch.engine.aside import SMALL, aside


async def test_work_on_large_bodies_has_a_thread_of_its_own() -> None:
    own = threading.get_ident()
    assert await aside(SMALL, threading.get_ident) == own
    assert await aside(SMALL + 1, threading.get_ident) != own


async def test_its_errors_are_those_of_the_work() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await aside(SMALL + 1, int, "a")
