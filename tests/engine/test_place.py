"""Where the log says that a thread hangs."""

import threading
from typing import Any

import pytest

from kserve_torch.engine.place import place_of
from kserve_torch.namespace.scopes import PREFIX

HANDLER = """
def handle(call, depth):
    if depth:
        return handle(call, depth - 1)
    return call()
"""


@pytest.mark.parametrize(("depth", "told"), [(1, 2), (50, 9)])
def test_a_thread_is_at_its_innermost_calls_and_those_of_an_archive(depth: int, told: int) -> None:
    scope: dict[str, Any] = {"__name__": f"{PREFIX}7.handler"}
    exec(compile(HANDLER, "/tmp/archive/handler.py", "exec"), scope)
    gate = threading.Lock()
    thread = threading.Thread(
        target=scope["handle"], args=(lambda: gate.acquire(timeout=10), depth)
    )
    with gate:
        thread.start()
        while not (place := place_of(thread)).startswith("test_place.py"):
            assert thread.is_alive()
    thread.join()
    assert " in <lambda> < handler.py:5 in handle < handler.py:4 in handle" in place
    assert place.count(" in handle") == told
    assert "/" not in place
    assert place_of(thread) == ""
