"""`Pool` with real threads; what its workers load is made here, and a row is what is to be done."""

import asyncio
import itertools
import logging
import platform
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from kserve_torch.engine import courtesy, hung, pauses
from kserve_torch.engine import pool as pools
from kserve_torch.engine.batcher import Lane, Ticket
from kserve_torch.engine.courtesy import Courtesy
from kserve_torch.engine.pool import Pool
from kserve_torch.engine.window import Window
from kserve_torch.engine.worker import Ran, Worker, WorkerState
from kserve_torch.errors import DeadlineExceeded, HandlerError, LoadFailed, NotReady
from kserve_torch.messages import Reply, Request, RowReply
from kserve_torch.settings import Limits

from ..forks import Forks
from ..threads import workers_end

_ids = itertools.count()


class Loaded:
    """In the place of an `Instance`: calls its rows."""

    def run(self, requests: Sequence[Request]) -> list[Reply]:
        return [
            Reply(model="m", version="1.0", rows=[RowReply(result=row()) for row in one.rows])
            for one in requests
        ]

    def close(self) -> None:
        pass


class Held:
    """A row, or a load, that does not end until it is let go."""

    ticket: Ticket

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.gate = threading.Event()

    def __call__(self, index: int = 0) -> Any:
        self.inside.set()
        assert self.gate.wait(10)
        return Loaded()

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, 10)


class Bench:
    """A pool, and a say in what its loads do."""

    def __init__(self, polite: Courtesy | None = None, **limits: Any) -> None:
        self.load: Callable[[int], Any] = lambda index: Loaded()
        self.ran: list[Ran] = []
        self.changes: list[tuple[int, WorkerState]] = []
        self.pool = Pool(
            Lane("m 1.0 predict", Window(1, 0.0, 100)),
            load=lambda index: self.load(index),
            ran=self.ran.append,
            changed=lambda worker: self.changes.append((worker.index, worker.state)),
            limits=Limits(**limits),
            courtesy=polite,
        )

    def submit(self, row: Callable[[], Any]) -> Ticket:
        return self.pool.lane.submit(Request(id=f"{next(_ids)}", model="m", rows=[row]))

    def hold(self) -> Held:
        """A request whose call goes on until it is let go."""
        held = Held()
        held.ticket = self.submit(held)
        return held

    async def result(self, row: Callable[[], Any]) -> Any:
        return (await asyncio.wait_for(self.submit(row).future, 10)).results[0]


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Its parameter is the pool's courtesy, or its limits."""
    given = getattr(request, "param", None)
    async with workers_end():
        bench = Bench(**given) if isinstance(given, dict) else Bench(given)
        yield bench
        bench.pool.close()
        bench.pool.lane.close()
        assert await bench.pool.join(10)


def die() -> None:
    """A row that ends its worker."""
    raise SystemExit


async def lose_worker(bench: Bench) -> None:
    """Have a worker die, and wait until its replacement is due after a pause."""
    with pytest.raises(HandlerError, match="died"):
        await bench.result(die)
    await until(lambda: bench.pool.staffing._pauses)


async def give_up(bench: Bench) -> None:
    """Have a worker die, none take its place, and the pool, which has no patience, give up."""
    bench.load = lambda index: 1 / 0
    with pytest.raises(HandlerError, match="died"):
        await bench.result(die)
    await until(lambda: bench.pool.staffing.given_up)


async def until(condition: Callable[[], object]) -> None:
    """Ask again until ``condition`` holds, where nothing announces it."""
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.002)


async def test_whoever_scales_waits_for_workers_that_are_loading_already(bench: Bench) -> None:
    held = Held()
    bench.load = held
    first = asyncio.create_task(bench.pool.scale(1, 1))
    await held.begun()
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
    assert await bench.pool.join(10)
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


async def test_of_many_idle_workers_the_minimum_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin to wait at the same time, and each is one too many by then."""
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.05)
    asked: list[bool] = []
    may_stop = bench.pool._may_stop

    def ask(worker: Any) -> bool:
        asked.append(may_stop(worker))
        return asked[-1]

    monkeypatch.setattr(bench.pool, "_may_stop", ask)
    await bench.pool.scale(4, 4)
    await bench.pool.scale(1, 4)
    await until(lambda: len(asked) >= 6)
    assert asked.count(True) == 3
    assert bench.pool.roster.ready == bench.pool.roster.size == 1
    assert await bench.result(lambda: "served") == "served"


async def test_who_is_scaled_down_while_it_works_does_not_count(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    held = bench.hold()
    await held.begun()
    await bench.pool.scale(0, 0)
    assert (bench.pool.roster.size, bench.pool.roster.ready, len(bench.pool.roster.all())) == (
        0,
        0,
        1,
    )
    await bench.pool.scale(1, 1)
    assert (bench.pool.roster.size, bench.pool.roster.ready, len(bench.pool.roster.all())) == (
        1,
        1,
        2,
    )
    held.gate.set()
    assert await held.ticket.future
    await until(lambda: len(bench.pool.roster.all()) == 1)
    assert await bench.result(lambda: "served") == "served"


async def test_of_two_that_may_stop_one_is_too_many(bench: Bench) -> None:
    await bench.pool.scale(2, 2)
    bench.pool.staffing.minimum = 1
    first, second = bench.pool.roster.staying()
    assert bench.pool._may_stop(first)
    assert not bench.pool._may_stop(second)


async def test_there_are_no_more_workers_than_the_maximum(bench: Bench) -> None:
    bench.pool.staffing.relieve()
    await bench.pool.scale(1, 2)
    for _ in range(3):
        bench.pool.staffing.relieve()
        await until(lambda: len(bench.changes) == 2)
    assert bench.changes == [(0, WorkerState.READY), (1, WorkerState.READY)]
    assert bench.pool.roster.size == 2


async def test_it_is_busy_while_a_batch_runs_and_a_moment_longer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.pool.scale(1, 1)
    assert (bench.pool.running, bench.pool.busy) == (0, False)
    monkeypatch.setattr(pools, "BUSY_SECONDS", 0.0)
    held = bench.hold()
    await held.begun()
    assert (bench.pool.running, bench.pool.busy) == (1, True)
    held.gate.set()
    await held.ticket.future
    await until(lambda: not bench.pool.running)
    assert not bench.pool.busy
    monkeypatch.setattr(pools, "BUSY_SECONDS", 60.0)
    assert bench.pool.busy
    await until(lambda: bench.ran)
    [ran] = bench.ran
    assert (ran.requests, ran.rows, ran.calls) == (1, 1, 1)


async def test_a_closed_pool_ends_its_batch_and_starts_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BACK_OFF", (60.0,))
    await bench.pool.scale(2, 2)
    await lose_worker(bench)
    held = bench.hold()
    await held.begun()
    bench.pool.close()
    assert not bench.pool.staffing._pauses
    held.gate.set()
    assert await held.ticket.future
    assert await bench.pool.join(10)
    assert (bench.pool.roster.all(), len(bench.pool.staffing._pauses)) == ([], 0)
    assert [state for _, state in bench.changes].count(WorkerState.READY) == 2


@pytest.mark.parametrize("bench", [{"response_timeout": 60.0}], indirect=True)
async def test_calls_that_may_go_on_are_left_alone(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    assert bench.pool.give_up_hung() is None
    held = bench.hold()
    await held.begun()
    soonest = bench.pool.give_up_hung()
    assert soonest is not None
    assert 0 < soonest <= 60
    [worker] = bench.pool.roster.all()
    bench.pool._overdue(worker)  # its timer went off as it got ready
    assert worker.state is WorkerState.READY
    held.gate.set()
    assert await held.ticket.future


@pytest.mark.parametrize(
    ("bench", "patience", "shares"),
    [(None, pools.PRESSURE_SECONDS, 1), (Courtesy(lambda: False), 0.0, 2)],
    indirect=["bench"],
)
async def test_the_cores_are_shared_by_those_that_work_in_the_background_by_all(
    bench: Bench, patience: float, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "thread_counts", lambda workers: [workers])
    await bench.pool.scale(1, 2)
    assert bench.pool.patience == patience
    [worker] = bench.pool.roster.all()
    assert worker._threads._tuners.usual.most == shares
    await bench.pool.scale(3, 3)
    held = bench.hold()
    await held.begun()
    assert worker._threads._tuners.now().most == shares
    held.gate.set()
    assert await held.ticket.future


async def test_an_idle_worker_keeps_no_answers(bench: Bench) -> None:
    class Large:
        pass

    await bench.pool.scale(1, 1)
    kept = weakref.ref(await bench.result(Large))
    await until(lambda: kept() is None)


async def test_a_call_is_not_given_up_for_one_that_has_ended(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    [worker] = bench.pool.roster.all()
    began = await bench.result(worker.busy_since)
    held = bench.hold()
    await held.begun()
    assert worker.abandon(began) is None
    held.gate.set()
    assert await held.ticket.future


@pytest.mark.parametrize("bench", [Courtesy(lambda: True)], indirect=True)
async def test_who_leaves_while_its_worker_waits_for_its_turn_is_not_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courtesy, "PATIENCE_SECONDS", 10.0)
    calls: list[str] = []
    await bench.pool.scale(1, 1)
    assert bench.pool._courtesy is not None
    with bench.pool._courtesy.turn():
        left = bench.submit(lambda: calls.append("left"))
        await until(lambda: bench.pool.lane.waiting == 0)
        left.future.cancel()
    assert await bench.result(lambda: calls.append("stayed")) is None
    assert calls == ["stayed"]


async def test_indexes_of_lost_workers_are_given_again(bench: Bench) -> None:
    """Accelerators go by them: the others would have two workers on one, and none on another."""
    indexes: list[int] = []
    bench.load = lambda index: indexes.append(index) or Loaded()  # type: ignore[func-returns-value]
    await bench.pool.scale(3, 3)
    first = bench.pool.roster.all()[0]
    first.stop()
    await until(lambda: len(indexes) == 4)
    assert indexes == [0, 1, 2, 0]


async def test_a_worker_that_is_there_again_is_not_replaced_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BACK_OFF", (0.2,))
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
    monkeypatch.setattr(pauses, "BACK_OFF", (0.2, 0.0))
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
async def test_who_was_given_up_can_be_scaled_up_again(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    await give_up(bench)
    with pytest.raises(LoadFailed, match="ZeroDivisionError"):
        await bench.pool.scale(1, 1)
    assert bench.pool.staffing.reason == "ZeroDivisionError: division by zero"
    held = bench.load = Held()
    scaling = asyncio.create_task(bench.pool.scale(1, 1))
    await held.begun()
    assert not bench.pool.staffing.given_up
    assert bench.pool.staffing._back_off._failures == 0
    held.gate.set()
    await scaling
    assert bench.pool.staffing.reason == ""
    assert await bench.result(lambda: "served") == "served"


@pytest.mark.parametrize("bench", [{"max_retry_timeout": 0.0}], indirect=True)
async def test_who_was_given_up_and_is_there_after_all_is_not_given_up(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    await give_up(bench)
    bench.load = lambda index: Loaded()
    bench.pool.staffing.relieve()
    assert await bench.result(lambda: "served") == "served"
    assert not bench.pool.staffing.given_up


async def test_to_load_is_not_yet_to_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that loads and dies on every batch is started less and less often."""
    monkeypatch.setattr(pauses, "BACK_OFF", (0.0,))
    await bench.pool.scale(1, 1)
    for _ in range(3):
        with pytest.raises(HandlerError):
            await bench.result(die)
    await until(lambda: bench.pool.staffing._back_off._failures == 3)
    await until(lambda: bench.pool.roster.ready)
    assert bench.pool.staffing._back_off._failures == 3
    assert await bench.result(lambda: "served") == "served"
    await until(lambda: bench.pool.staffing._back_off._failures == 0)


async def test_a_worker_that_served_for_long_is_replaced_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BACK_OFF", (0.0,))
    monkeypatch.setattr(pools, "STEADY_SECONDS", 0.0)
    await bench.pool.scale(1, 1)
    for _ in range(3):
        with pytest.raises(HandlerError):
            await bench.result(die)
    await until(lambda: bench.changes.count((0, WorkerState.READY)) == 4)
    assert bench.pool.staffing._back_off._failures == 1


@pytest.mark.parametrize("bench", [{"startup_timeout": 0.1}], indirect=True)
async def test_a_load_that_hangs_is_given_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    held = bench.load = Held()
    with pytest.raises(NotReady, match=r"not ready within startupTimeout, 0\.1 s"):
        await bench.pool.scale(1, 1)
    assert (len(bench.pool.hung), bench.pool.roster.size) == (1, 0)
    waiting = bench.submit(lambda: "never")
    bench.pool.staffing.relieve()
    with pytest.raises(NotReady, match="startupTimeout"):
        await waiting.future
    bench.load = lambda index: Loaded()
    await bench.pool.scale(1, 1)
    assert await bench.result(lambda: "served") == "served"
    held.gate.set()
    await until(lambda: not bench.pool.hung)
    await until(lambda: "is no longer hung" in caplog.text)
    assert bench.pool.roster.size == 1
    assert "; it is at threading.py:" in caplog.text
    assert "requests that fail: none" in caplog.text


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_the_log_says_where_a_call_hangs_and_which_requests_fail(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.pool.scale(1, 1)
    held = bench.hold()
    await held.begun()
    bench.pool.give_up_hung()
    held.gate.set()
    with pytest.raises(DeadlineExceeded) as failure:
        await held.ticket.future
    [line] = [text for text in caplog.messages if "is hung" in text]
    assert " in wait < test_pool.py:" in line
    assert line.endswith(f"; requests that fail: {held.ticket.request.id}")
    assert "test_pool" not in str(failure.value)


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_what_waits_for_a_pool_that_is_worn_out_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hung, "HUNG_LIMIT", 1)
    await bench.pool.scale(1, 1)
    held, waiting = bench.hold(), bench.submit(lambda: "never")
    await held.begun()
    bench.pool.give_up_hung()
    with pytest.raises(DeadlineExceeded):
        await held.ticket.future
    with pytest.raises(NotReady, match="1 handler threads are hung"):
        await waiting.future
    bench.pool.staffing.relieve()
    assert bench.pool.roster.size == 0
    held.gate.set()
    assert await bench.result(lambda: "served") == "served"


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_once_not_too_many_hang_all_that_are_missing_are_started(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one for each that comes back: the others may never come back."""
    monkeypatch.setattr(hung, "HUNG_LIMIT", 2)
    monkeypatch.setattr(pauses, "BACK_OFF", (0.0,))
    await bench.pool.scale(3, 3)
    held = [bench.hold(), bench.hold()]
    for one in held:
        await one.begun()
    bench.pool.give_up_hung()
    assert bench.pool.roster.size == 1
    held[0].gate.set()
    await until(lambda: bench.pool.roster.ready == 3)
    assert len(bench.pool.hung) == 1
    held[1].gate.set()
    await until(lambda: not bench.pool.hung)
    assert (bench.pool.roster.size, len(bench.pool.staffing._pauses)) == (3, 0)
    for one in held:
        with pytest.raises(DeadlineExceeded):
            await one.ticket.future


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_all_that_hang_at_once_are_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BACK_OFF", (0.1,))
    await bench.pool.scale(2, 2)
    held = [bench.hold(), bench.hold()]
    for one in held:
        await one.begun()
    bench.pool.give_up_hung()
    assert len(bench.pool.staffing._pauses) + bench.pool.roster.size == 2
    await until(lambda: bench.pool.roster.ready == 2)
    for one in held:
        one.gate.set()
        with pytest.raises(DeadlineExceeded):
            await one.ticket.future


@pytest.mark.parametrize(
    "bench", [{"response_timeout": 0.0, "max_retry_timeout": 0.0}], indirect=True
)
async def test_who_hangs_again_long_after_is_replaced_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its starts succeed; nobody else would start one, and the server is live."""
    monkeypatch.setattr(pauses, "BACK_OFF", (0.0,))
    await bench.pool.scale(1, 1)
    for _ in range(2):
        held = bench.hold()
        await held.begun()
        bench.pool.give_up_hung()
        held.gate.set()
        with pytest.raises(DeadlineExceeded):
            await held.ticket.future
        await until(lambda: bench.pool.roster.ready and not bench.pool.hung)
    assert not bench.pool.staffing.given_up
    assert await bench.result(lambda: "served") == "served"


@pytest.mark.parametrize("bench", [{"startup_timeout": 0.1}], indirect=True)
async def test_a_worker_that_loaded_too_late_has_ended_once(bench: Bench) -> None:
    held = bench.load = Held()
    with pytest.raises(NotReady):
        await bench.pool.scale(1, 1)
    bench.load = lambda index: Loaded()
    held.gate.set()
    assert await bench.result(lambda: "served") == "served"
    assert [state.value for _, state in bench.changes] == ["HUNG", "STOPPED", "READY"]


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_it_is_told_when_a_worker_hangs_and_when_it_has_ended_after_all(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    held = bench.hold()
    await held.begun()
    bench.pool.give_up_hung()
    await until(lambda: len(bench.changes) == 3)
    held.gate.set()
    with pytest.raises(DeadlineExceeded):
        await held.ticket.future
    await until(lambda: len(bench.changes) == 4)
    assert [state.value for _, state in bench.changes] == ["READY", "HUNG", "READY", "STOPPED"]


async def test_after_failed_starts_there_is_a_pause_before_the_next_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BACK_OFF", (0.0, 60.0))
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
    monkeypatch.setattr(pauses, "BACK_OFF", (60.0,))
    bench.pool.staffing.maximum = 1
    bench.load = lambda index: 1 / 0
    for _ in range(2):  # the first one is there when the start fails
        waiting = bench.submit(lambda: None).future
        bench.pool.staffing.relieve()
        with pytest.raises(NotReady, match="no worker could be started: ZeroDivisionError"):
            await asyncio.wait_for(waiting, 10)
        await until(lambda: time.monotonic() < bench.pool.staffing._may_grow_at)
    assert [state for _, state in bench.changes] == [WorkerState.FAILED]
    monkeypatch.setattr(pauses, "BACK_OFF", (0.0,))
    bench.pool.staffing._may_grow_at = 0.0
    bench.load = lambda index: Loaded()
    bench.pool.staffing.relieve()
    assert await bench.result(lambda: "served") == "served"
    await until(lambda: not bench.pool.staffing._growth._failures)


async def test_a_worker_of_the_background_that_hangs_keeps_no_turn() -> None:
    polite = courtesy.Courtesy(busy=lambda: True)
    async with workers_end():
        bench = Bench(polite, response_timeout=0.0)
        await bench.pool.scale(1, 1)
        held = bench.hold()
        await held.begun()
        assert polite._lock.locked()
        bench.pool.give_up_hung()
        assert not polite._lock.locked()
        await until(lambda: bench.pool.roster.ready)
        bench.pool.close()
        held.gate.set()
        with pytest.raises(DeadlineExceeded):
            await held.ticket.future
        assert await bench.pool.join(10)


async def test_a_worker_that_tidies_up_is_waited_for(bench: Bench) -> None:
    tidying, gate = threading.Event(), threading.Event()

    class Untidy(Loaded):
        def close(self) -> None:
            tidying.set()
            assert gate.wait(10)

    bench.load = lambda index: Untidy()
    await bench.pool.scale(1, 1)
    await bench.pool.scale(0, 0)
    assert await asyncio.to_thread(tidying.wait, 10)
    assert bench.pool.roster.all() == []
    assert not await bench.pool.join(0.05)
    gate.set()
    assert await bench.pool.join(10)


async def test_what_waits_is_served_before_the_last_workers_go_home(bench: Bench) -> None:
    await bench.pool.scale(2, 2)
    held = [bench.hold(), bench.hold()]
    for one in held:
        await one.begun()
    waiting = [bench.submit(lambda: "served") for _ in range(3)]
    await bench.pool.scale(0, 0)
    assert bench.pool.roster.size == 0
    for one in held:
        one.gate.set()
    for ticket in waiting:
        assert (await ticket.future).results == ["served"]
    assert await bench.pool.join(10)


async def test_who_still_serves_what_waits_stops_once_others_can(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    first = bench.hold()
    await first.begun()
    second = bench.hold()
    await bench.pool.scale(0, 0)
    await bench.pool.scale(1, 1)
    await second.begun()
    first.gate.set()
    await until(lambda: len(bench.pool.roster.all()) == 1)
    second.gate.set()
    assert (await second.ticket.future).results


async def test_idle_workers_go_home_at_once(bench: Bench) -> None:
    await bench.pool.scale(2, 2)
    await bench.pool.scale(0, 0)
    assert await bench.pool.join(10)


async def test_what_waits_is_refused_once_no_worker_is_left_to_serve_it(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    held, waiting = bench.hold(), bench.submit(lambda: "never")
    await held.begun()
    await bench.pool.scale(0, 0)
    [worker] = bench.pool.roster.all()
    worker.stop()
    held.gate.set()
    assert await held.ticket.future
    with pytest.raises(NotReady, match="no worker"):
        await waiting.future


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


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_no_more_threads_for_a_replacement(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    await bench.pool.scale(1, 1)
    held = bench.hold()
    await held.begun()
    behind = bench.submit(lambda: "never")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Timer, "start", refuse)
        bench.pool.give_up_hung()
    with pytest.raises(DeadlineExceeded):
        await held.ticket.future
    with pytest.raises(NotReady, match="can't start new thread"):
        await asyncio.wait_for(behind.future, 10)
    bench.pool.staffing.relieve()
    assert await bench.result(lambda: "served") == "served"
    held.gate.set()


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_who_comes_back_at_the_moment_it_is_given_up_does_not_count(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.pool.scale(1, 1)
    held = bench.hold()
    await held.begun()
    abandon = Worker.abandon

    def slowly(worker: Worker, since: float) -> Sequence[Ticket] | None:
        batch = abandon(worker, since)
        held.gate.set()
        worker.thread.join(0.2)
        return batch

    monkeypatch.setattr(Worker, "abandon", slowly)
    bench.pool.give_up_hung()
    with pytest.raises(DeadlineExceeded):
        await held.ticket.future
    await until(lambda: not bench.pool.hung)
    assert await bench.result(lambda: "served") == "served"


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_who_comes_back_while_it_is_given_up_takes_no_other_batch(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    [worker] = bench.pool.roster.all()
    held = bench.hold()
    await held.begun()
    behind = bench.submit(lambda: "served")

    class Stopping(threading.Event):
        """Set by who gives up the worker; meanwhile its thread gets on as far as it can."""

        def set(self) -> None:
            held.gate.set()
            worker.thread.join(0.2)
            super().set()

    worker._stopping = Stopping()
    bench.pool.give_up_hung()
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(held.ticket.future, 10)
    assert (await asyncio.wait_for(behind.future, 10)).results == ["served"]


#: Prints by how many MB a process is larger with four workers that share 48 MB, and after them.
SHARING = """
import asyncio, psutil, torch
from kserve_torch.engine.batcher import Lane
from kserve_torch.engine.pool import Pool
from kserve_torch.engine.window import Window
from kserve_torch.runtime.machine import keep_freed_memory
from kserve_torch.settings import Limits
class Loaded:
    first = None
    def __init__(self):
        self.weights, self.own = [], []
        for _ in range(48):
            self.weights.append(torch.ones(2**18))
            self.own.append(bytearray(2000))
        if Loaded.first:
            self.weights = Loaded.first.weights
        Loaded.first = self
    def close(self):
        Loaded.first = None
async def main():
    keep_freed_memory()
    memory = psutil.Process().memory_info
    lane = Lane("m 1.0 predict", Window(1, 0.0, 100))
    skip = lambda *_: None
    pool = Pool(lane, lambda _: Loaded(), ran=skip, changed=skip, limits=Limits(), courtesy=None)
    before = memory().rss
    await pool.scale(4, 4)
    print((memory().rss - before) >> 20)
    pool.close()
    await pool.join(10)
    print((memory().rss - before) >> 20)
asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is freed is another library's")
def test_workers_give_back_what_they_do_not_need(forks: Forks) -> None:
    with_them, after_them = map(int, forks.run(SHARING).split())
    assert with_them < 80
    assert after_them < 30
