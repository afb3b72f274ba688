"""Which calls take too long: workers here are no more than their state and their call's begin."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kserve_torch.engine.hung import Hung, place_of
from kserve_torch.engine.roster import Roster
from kserve_torch.engine.worker import WorkerState
from kserve_torch.namespace.scopes import PREFIX


def worker(number: int, since: float | None, state: WorkerState = WorkerState.READY) -> Any:
    return SimpleNamespace(number=number, state=state, busy_since=lambda: since)


@pytest.mark.parametrize(
    ("now", "late", "left"),
    [
        (104.0, [], 1.0),
        (105.0, [1], 0.5),  # at the limit is late
        (105.25, [1], 0.25),
        (200.0, [1, 2], None),
    ],
)
def test_late_calls_and_when_the_next_one_is(now: float, late: list[int], left: float) -> None:
    roster = Roster()
    roster.enter(worker(1, 100.0))
    roster.enter(worker(2, 100.5))
    roster.enter(worker(3, None))
    roster.enter(worker(4, 0.0, WorkerState.LOADING))  # which has a limit of its own
    found, soonest = Hung(roster, "m 1.0 predict").late(5.0, now)
    assert [one.number for one, _ in found] == late
    assert all(since == one.busy_since() for one, since in found)
    assert soonest == left


def test_nothing_runs() -> None:
    assert Hung(Roster(), "m 1.0 predict").late(5.0, 100.0) == ([], None)


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
        while not (place := place_of(thread)).startswith("test_hung.py"):
            assert thread.is_alive()
    thread.join()
    assert " in <lambda> < handler.py:5 in handle < handler.py:4 in handle" in place
    assert place.count(" in handle") == told
    assert "/" not in place
    assert place_of(thread) == ""
