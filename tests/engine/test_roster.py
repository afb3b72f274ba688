"""Which calls take too long, and how the end of threads is waited for; workers are no more here."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kserve_torch.engine.roster import Roster
from kserve_torch.engine.worker import Worker, WorkerState


def worker(number: int, since: float | None, state: WorkerState = WorkerState.READY) -> Any:
    return SimpleNamespace(number=number, state=state, busy_since=lambda: since)


def with_threads(*threads: threading.Thread) -> Roster:
    roster = Roster()
    for number, thread in enumerate(threads):
        roster.enter(cast("Worker", SimpleNamespace(number=number, thread=thread)))
    return roster


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


async def test_threads_are_waited_for_as_long_as_is_said() -> None:
    gate = threading.Event()
    threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    roster = with_threads(*threads, threading.Thread())  # the last one has not started yet
    assert not await roster.join(0.0)
    assert not await roster.join(0.01)
    asyncio.get_running_loop().call_later(0.01, gate.set)
    assert await roster.join(30.0)
    assert not any(thread.is_alive() for thread in threads)


async def test_threads_that_hang_keep_nobody_from_the_loops_own() -> None:
    gate = threading.Event()
    hanging = threading.Thread(target=gate.wait, daemon=True)
    hanging.start()
    roster = with_threads(hanging)
    waits = [asyncio.ensure_future(roster.join(30.0)) for _ in range(50)]
    began = time.monotonic()
    assert await asyncio.to_thread(lambda: "at once") == "at once"
    assert time.monotonic() - began < 20
    gate.set()
    assert all(await asyncio.gather(*waits))
