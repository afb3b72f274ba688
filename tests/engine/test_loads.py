"""Loads take turns, and those that compute nothing let others begin."""

import asyncio
import os
import threading
import time
from types import SimpleNamespace

import pytest

from kserve_torch.engine import backoff, staffing
from kserve_torch.engine import loads as module
from kserve_torch.engine.courtesy import Courtesy
from kserve_torch.engine.loads import Loads
from kserve_torch.engine.worker import WorkerState
from kserve_torch.errors import HandlerError, NotReady

from ..waiting import until
from .bench import Bench, Held, die


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process counts as busy, whatever it does, for longer than a test takes."""
    monkeypatch.setattr(module, "IDLE", 0.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 60.0)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch, busy: None) -> Loads:
    """One load at a time, for the bench; one runs already."""
    turns = Loads(1)
    monkeypatch.setattr(staffing, "LOADS", turns)
    turns.begin(lambda: None, at_once=True)
    return turns


@pytest.mark.usefixtures("busy")
async def test_so_many_run_at_a_time_in_the_order_in_which_they_came() -> None:
    turns, begun = Loads(2), list[int]()
    for number in range(4):
        turns.begin(lambda number=number: begun.append(number))
    for most in (2, 3, 4, 4):
        await until(lambda most=most: begun == list(range(most)))
        assert len(turns._waiting) == 4 - most
        turns.end()


@pytest.mark.usefixtures("busy")
async def test_who_begins_has_not_the_priority_of_who_ends() -> None:
    """Explanations' threads have a lower one, and new threads that of those that start them."""
    turns, begun = Loads(1), list[int]()
    for _ in range(2):
        turns.begin(lambda: begun.append(priority()))
    await until(lambda: begun)

    def end() -> None:
        Courtesy(lambda: False).lower_priority()
        turns.end()

    ending = threading.Thread(target=end)
    ending.start()
    ending.join()
    await until(lambda: len(begun) == 2)
    assert begun == [priority()] * 2


def priority() -> int:
    """That of the calling thread, on Linux."""
    return os.getpriority(os.PRIO_PROCESS, 0)


async def test_thousands_that_fail_at_once_are_no_trouble() -> None:
    """As when the system has no more threads."""
    turns, begun = Loads(1), list[int]()

    def fail() -> None:
        begun.append(1)
        turns.end()
        raise RuntimeError("can't start new thread")

    turns.begin(lambda: None)
    for _ in range(2000):
        turns.begin(fail)
    turns.end()
    await until(lambda: len(begun) == 2000)
    await until(lambda: not turns._running)


async def test_others_begin_while_those_that_run_leave_the_process_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks = SimpleNamespace(monotonic=time.monotonic, process_time=lambda: 100.0)
    monkeypatch.setattr(module, "time", clocks)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.001)
    turns, begun = Loads(2), list[int]()
    for number in range(7):
        turns.begin(lambda number=number: begun.append(number))
    await until(lambda: len(begun) == 7)
    for _ in range(7):
        turns.end()
    monkeypatch.setattr(module, "IDLE", 0.0)
    for number in range(3):
        turns.begin(lambda number=number: begun.append(number))
    await until(lambda: len(begun) == 9)
    assert len(turns._waiting) == 1


async def test_the_time_limit_of_a_load_begins_with_its_turn(bench: Bench, turns: Loads) -> None:
    """Hundreds of models take longer together than one may."""
    scaled = asyncio.create_task(bench.pool.scale(1, 1))
    await until(bench.pool.roster.all)
    [worker] = bench.pool.roster.all()
    [start] = bench.pool.staffing._starting.values()
    assert (worker.busy_since(), start.clock.is_alive()) == (None, False)
    turns.end()
    await scaled
    assert worker.state is WorkerState.READY


@pytest.mark.parametrize("bench", [{"startup_timeout": 0.2}], indirect=True)
async def test_a_load_that_hangs_does_not_keep_its_turn(bench: Bench, turns: Loads) -> None:
    turns.end()
    bench.load = held = Held()
    with pytest.raises(NotReady, match="startupTimeout"):
        await bench.pool.scale(1, 1)
    begun: list[bool] = []
    turns.begin(lambda: begun.append(True))
    await until(lambda: begun)
    held.gate.set()


async def test_a_model_that_leaves_before_its_turn_is_not_loaded(
    bench: Bench, turns: Loads
) -> None:
    loads: list[int] = []
    bench.load = loads.append
    scaled = asyncio.create_task(bench.pool.scale(1, 1))
    await until(bench.pool.roster.all)
    bench.pool.close()
    turns.end()
    await scaled
    assert (loads, [state for _, state in bench.changes]) == ([], [WorkerState.STOPPED])
    assert not bench.pool.roster.all()


async def test_who_waits_for_one_that_leaves_before_its_turn_gets_another(
    bench: Bench, turns: Loads
) -> None:
    pool = bench.pool
    async with asyncio.timeout(10):
        scaled = [asyncio.create_task(pool.scale(1, 1))]
        await until(pool.roster.all)
        answer = asyncio.create_task(bench.result(lambda: 1))
        await until(lambda: pool.lane.waiting)
        scaled += [asyncio.create_task(pool.scale(0, most)) for most in (0, 1)]
        await asyncio.wait(scaled[1:])
        turns.end()
        assert await answer == 1
        await asyncio.wait(scaled)


async def test_workers_for_which_requests_wait_take_no_turn(
    bench: Bench, turns: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that replace others nor those that are started as requests wait."""
    monkeypatch.setattr(backoff, "BACK_OFF", (0.01,))
    turns.end()
    await bench.pool.scale(1, 2)
    turns.begin(lambda: None, at_once=True)
    with pytest.raises(HandlerError, match="died"):
        await bench.result(die)
    assert await bench.result(lambda: 1) == 1
    bench.pool.staffing.relieve()
    await until(lambda: bench.pool.roster.ready == 2)
    await until(lambda: turns._running == 1)  # they are over, and the first one is not
