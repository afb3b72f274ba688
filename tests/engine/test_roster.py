"""Which calls take too long: workers here are no more than their state and their call's begin."""

from types import SimpleNamespace
from typing import Any

import pytest

from kserve_torch.engine.roster import Roster
from kserve_torch.engine.worker import WorkerState


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
    found, soonest = roster.late(5.0, now)
    assert [one.number for one, _ in found] == late
    assert all(since == one.busy_since() for one, since in found)
    assert soonest == left


def test_nothing_runs() -> None:
    assert Roster().late(5.0, 100.0) == ([], None)
