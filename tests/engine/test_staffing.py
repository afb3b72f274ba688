"""Workers that are started, fail to start, and are started again."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from kserve_torch.engine import backoff
from kserve_torch.engine import pool as pools
from kserve_torch.engine.backoff import Pauses
from kserve_torch.engine.worker import Worker, WorkerState
from kserve_torch.errors import HandlerError, LoadFailed, NotReady

from ..waiting import until
from .bench import Bench, Held, Loaded, die, lose_worker


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each pause before a worker is replaced; here none takes that long."""
    found: list[float] = []
    begin = Pauses.begin

    def note(self: Pauses, seconds: float) -> None:
        found.append(seconds)
        begin(self, 0.0)

    monkeypatch.setattr(Pauses, "begin", note)
    return found


async def give_up(bench: Bench) -> None:
    """Have a worker die, none take its place, and the pool, which has no patience, give up."""
    bench.load = lambda index: 1 / 0
    with pytest.raises(HandlerError, match="died"):
        await bench.result(die)
    await until(lambda: bench.pool.staffing.given_up)


async def test_whoever_scales_waits_for_workers_that_are_loading_already(bench: Bench) -> None:
    held = Held()
    bench.load = held
    first = asyncio.create_task(bench.pool.scale(1, 1))
    await held.begun()
    [start] = bench.pool.staffing._starting.values()
    assert start.clock.daemon  # else the process would not end before it
    second = asyncio.create_task(bench.pool.scale(1, 1))
    done, _ = await asyncio.wait([first, second], timeout=0.05)  # it would have ended by now
    assert not done
    held.gate.set()
    await asyncio.gather(first, second)
    assert bench.pool.roster.ready == 1


async def test_no_worker_is_replaced_once_the_queue_is_closed(bench: Bench) -> None:
    """A worker may end between the two steps of an unload; another one would load in vain."""
    await bench.pool.scale(1, 1)
    loads: list[int] = []
    bench.load = loads.append
    bench.pool.lane.close()
    assert await bench.pool.roster.join(10)
    assert (len(bench.pool.staffing._pauses), bench.pool.roster.all(), loads) == (0, [], [])


@pytest.fixture
def nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no memory for it."""

    def full(*values: object, **more: object) -> None:
        raise MemoryError

    for name in ("worker", "pool"):
        for method in ("error", "exception"):
            monkeypatch.setattr(logging.getLogger(f"kserve_torch.engine.{name}"), method, full)


@pytest.mark.usefixtures("nothing_is_logged")
async def test_a_lost_worker_is_replaced_even_if_nothing_can_be_logged(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    with pytest.raises(HandlerError, match="died"):
        await bench.result(die)
    assert await bench.result(lambda: "served") == "served"


@pytest.mark.usefixtures("nothing_is_logged")
async def test_whoever_waits_for_a_worker_is_told_that_it_failed(bench: Bench) -> None:
    bench.load = lambda index: 1 / 0
    with pytest.raises(LoadFailed, match="division"):
        await asyncio.wait_for(bench.pool.scale(1, 1), 10)


async def test_the_first_worker_loads_the_weights_that_the_others_share(bench: Bench) -> None:
    indexes: list[int] = []
    held = Held()

    def load(index: int) -> Any:
        indexes.append(index)
        return held()

    bench.load = load
    scaling = asyncio.create_task(bench.pool.scale(3, 3))
    await held.begun()
    assert not (await asyncio.wait([scaling], timeout=0.05))[0]  # the others would have begun
    assert indexes == [0]
    held.gate.set()
    await scaling
    assert sorted(indexes) == [0, 1, 2]


async def test_who_scales_to_what_is_there_waits_for_nobody(bench: Bench) -> None:
    await bench.pool.scale(1, 2)
    held = bench.load = Held()
    bench.pool.staffing.relieve()
    await held.begun()
    await asyncio.wait_for(bench.pool.scale(1, 2), 10)
    held.gate.set()


async def test_there_are_no_more_workers_than_the_maximum(bench: Bench) -> None:
    bench.pool.staffing.relieve()
    await bench.pool.scale(1, 2)
    for _ in range(3):
        bench.pool.staffing.relieve()
        await until(lambda: len(bench.changes) == 2)
    assert bench.changes == [(0, WorkerState.READY), (1, WorkerState.READY)]
    assert bench.pool.roster.size == 2


async def test_a_worker_that_is_there_again_is_not_replaced_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "BACK_OFF", (0.2,))
    await bench.pool.scale(1, 1)
    await lose_worker(bench)
    bench.pool.staffing.relieve()
    assert await bench.result(lambda: "served") == "served"
    await until(lambda: not bench.pool.staffing._pauses)
    assert bench.pool.roster.size == 1


async def test_a_worker_that_came_before_its_turn_and_fails_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else will: the pause has ended, as it was there."""
    monkeypatch.setattr(backoff, "BACK_OFF", (0.2, 0.0))
    await bench.pool.scale(1, 1)
    await lose_worker(bench)
    held = Held()
    bench.load = lambda index: held() and 1 / 0
    bench.pool.staffing.relieve()
    await held.begun()
    await until(lambda: not bench.pool.staffing._pauses)
    bench.load = lambda index: Loaded()
    held.gate.set()
    await until(lambda: bench.pool.roster.ready)


@pytest.mark.parametrize("bench", [{"max_retry_timeout": 0.0}], indirect=True)
async def test_who_was_given_up_can_be_scaled_up_again(bench: Bench, pauses: list[float]) -> None:
    await bench.pool.scale(1, 1)
    await give_up(bench)
    with pytest.raises(LoadFailed, match="ZeroDivisionError"):
        await bench.pool.scale(1, 1)
    assert bench.pool.staffing.reason == "ZeroDivisionError: division by zero"
    held = bench.load = Held()
    scaling = asyncio.create_task(bench.pool.scale(1, 1))
    await held.begun()
    assert not bench.pool.staffing.given_up
    held.gate.set()
    await scaling
    assert bench.pool.staffing.reason == ""
    with pytest.raises(HandlerError, match="died"):
        await bench.result(die)
    assert await bench.result(lambda: "served") == "served"
    assert pauses == [0, 0]


@pytest.mark.parametrize("bench", [{"max_retry_timeout": 0.0}], indirect=True)
async def test_who_was_given_up_and_is_there_after_all_is_not_given_up(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    await give_up(bench)
    bench.load = lambda index: Loaded()
    bench.pool.staffing.relieve()
    assert await bench.result(lambda: "served") == "served"
    assert not bench.pool.staffing.given_up


async def test_to_load_is_not_yet_to_work(bench: Bench, pauses: list[float]) -> None:
    """A worker that loads and dies on every batch is started less and less often."""
    await bench.pool.scale(1, 1)
    for _ in range(4):
        with pytest.raises(HandlerError):
            await bench.result(die)
    assert await bench.result(lambda: "served") == "served"
    await until(lambda: bench.ran)
    with pytest.raises(HandlerError):
        await bench.result(die)
    await until(lambda: len(pauses) == 5)
    assert pauses == [0, 1, 1, 2, 0]


async def test_a_worker_that_served_for_long_is_replaced_at_once(
    bench: Bench, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "STEADY_SECONDS", 0.0)
    await bench.pool.scale(1, 1)
    for _ in range(3):
        with pytest.raises(HandlerError):
            await bench.result(die)
    await until(lambda: len(pauses) == 3)
    assert pauses == [0, 0, 0]


async def test_after_failed_starts_there_is_a_pause_before_the_next_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "BACK_OFF", (0.0, 60.0))
    await bench.pool.scale(1, 2)
    loads: list[int] = []
    bench.load = lambda index: loads.append(index) or 1 / 0  # type: ignore[func-returns-value]
    for _ in range(3):
        bench.pool.staffing.relieve()
        await until(lambda: not bench.pool.staffing._starting)
    assert loads == [1, 1]
    assert await bench.result(lambda: "served") == "served"


async def test_in_the_pause_after_failed_starts_requests_without_a_worker_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "BACK_OFF", (60.0,))
    bench.pool.staffing.maximum = 1
    bench.load = lambda index: 1 / 0
    for _ in range(2):  # the first one is there when the start fails
        waiting = bench.submit(lambda: None).future
        bench.pool.staffing.relieve()
        with pytest.raises(NotReady, match="no worker could be started: ZeroDivisionError"):
            await asyncio.wait_for(waiting, 10)
    assert [state for _, state in bench.changes] == [WorkerState.FAILED]
    monkeypatch.setattr(backoff, "BACK_OFF", (0.0,))
    bench.pool.staffing._may_grow_at = 0.0
    bench.load = lambda index: Loaded()
    bench.pool.staffing.relieve()
    assert await bench.result(lambda: "served") == "served"
    await until(lambda: not bench.pool.staffing._growth._failures)


@pytest.mark.parametrize("died", [False, True])
async def test_what_waits_is_refused_when_the_worker_does_not_start(
    bench: Bench, died: bool
) -> None:
    """The first one, or the one in the place of one that died: the next try may be far away."""
    loading, gate = threading.Event(), threading.Event()

    def fail(index: int) -> Any:
        loading.set()
        assert gate.wait(10)
        raise ValueError("no weights")

    if died:
        await bench.pool.scale(1, 1)
    bench.load = fail
    if died:
        killed = bench.submit(die).future
    else:
        scaling = asyncio.ensure_future(bench.pool.scale(1, 1))
    assert await asyncio.to_thread(loading.wait, 10)
    waiting = bench.submit(lambda: None).future
    gate.set()
    with pytest.raises(NotReady, match="no worker could be started: ValueError: no weights"):
        await asyncio.wait_for(waiting, 10)
    if died:
        with pytest.raises(HandlerError, match="died"):
            await killed
    else:
        with pytest.raises(LoadFailed, match="no weights"):
            await scaling


async def test_why_a_load_failed_is_logged_with_its_traceback(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cause = FileNotFoundError("/opt/weights/absent.bin")

    def fail(index: int) -> Any:
        raise LoadFailed("file not found: absent.bin") from cause

    bench.load = fail
    with pytest.raises(LoadFailed):
        await bench.pool.scale(1, 1)
    (record,) = caplog.records
    assert record.getMessage().endswith(" failed: file not found: absent.bin")
    assert record.exc_info is not None
    assert record.exc_info[1] is cause


async def test_no_more_threads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(worker: Worker) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "start", refuse)
        with pytest.raises(LoadFailed, match="can't start new thread"):
            await bench.pool.scale(1, 1)
    assert (bench.pool.roster.all(), len(bench.pool.staffing._starting)) == ([], 0)
    await bench.pool.scale(1, 1)
    assert await bench.result(lambda: "served") == "served"
