"""`Pool` with real threads; what its workers load is made here, and a row is what is to be done."""

import asyncio
import math
import os
import platform
import threading
import time
import weakref
from typing import Any

import pytest

from kserve_torch.engine import backoff, courtesy, gate, threads, trial
from kserve_torch.engine import pool as pools
from kserve_torch.engine import worker as workers
from kserve_torch.engine.courtesy import Courtesy
from kserve_torch.engine.worker import WorkerState
from kserve_torch.errors import DeadlineExceeded, NotReady
from kserve_torch.settings import Limits

from ..forks import Forks
from ..waiting import until
from .bench import Bench, Loaded, lose_worker


async def test_of_many_idle_workers_the_minimum_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin to wait at the same time, and each is one too many by then."""
    monkeypatch.setattr(workers, "IDLE_SECONDS", 0.05)
    asked: list[bool] = []
    may_stop = bench.pool._may_stop

    def ask(worker: Any) -> bool:
        asked.append(answer := may_stop(worker))
        return answer

    monkeypatch.setattr(bench.pool, "_may_stop", ask)
    await bench.pool.scale(4, 4)
    await bench.pool.scale(1, 4)
    await until(lambda: asked.count(True) >= 3)
    before = len(asked)
    await until(lambda: len(asked) >= before + 2)
    assert asked.count(True) == 3
    assert bench.pool.roster.ready == bench.pool.roster.size == 1
    assert await bench.result(lambda: "served") == "served"


def spin() -> None:
    """A row that holds the interpreter's lock for a millisecond."""
    end = time.thread_time() + 0.001
    while time.thread_time() < end:
        pass


async def test_under_load_it_is_found_out_how_many_are_best_at_work(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(gate, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(trial, "CLEAR", math.inf)
    monkeypatch.setattr(trial, "WORTH", -math.inf)  # fewer are best, whatever a noisy machine says
    await bench.pool.scale(2, 2)
    lane = bench.pool.lane

    def told() -> bool:
        while lane.waiting < 50:
            bench.submit(spin)
        return "m 1.0 predict: 1 of 2 workers compute at once: " in caplog.text

    await until(told)
    last = bench.submit(spin)
    bench.pool.patience = 0.0
    await until(lambda: lane.waiting)
    assert not bench.pool.is_short(last)
    await asyncio.wait_for(last.future, 10)


async def test_the_queue_knows_how_many_workers_there_are(bench: Bench) -> None:
    queue = bench.pool.lane._gate
    for count in (3, 2):
        await bench.pool.scale(count, count)
        await until(lambda count=count: queue.width == count)
    held = bench.hold()
    await held.begun()
    bench.pool._limits = Limits(response_timeout=0.0)
    bench.pool.staffing.end()
    bench.pool.give_up_hung()
    assert queue.width == 1
    held.gate.set()
    with pytest.raises(DeadlineExceeded):
        await held.ticket.future


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
    monkeypatch.setattr(backoff, "BACK_OFF", (60.0,))
    await bench.pool.scale(2, 2)
    await lose_worker(bench)
    held = bench.hold()
    await held.begun()
    bench.pool.close()
    assert not bench.pool.staffing._pauses
    held.gate.set()
    assert await held.ticket.future
    assert await bench.pool.roster.join(10)
    assert (bench.pool.roster.all(), len(bench.pool.staffing._pauses)) == ([], 0)
    assert [state for _, state in bench.changes].count(WorkerState.READY) == 2


@pytest.mark.parametrize(
    ("bench", "patience", "shares"),
    [(None, pools.PRESSURE_SECONDS, [1, 2, 1]), (Courtesy(lambda: False), 0.0, [2, 2, 2])],
    indirect=["bench"],
)
async def test_the_cores_are_shared_by_those_that_work_in_the_background_by_all(
    bench: Bench, patience: float, shares: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(threads, "use_threads", used.append)
    monkeypatch.setattr(threads, "thread_counts", lambda workers: [workers])
    await bench.pool.scale(1, 2)
    assert bench.pool.patience == patience
    await bench.pool.scale(2, 2)
    await bench.result(lambda: None)
    assert used == shares  # of two loads and a call


async def test_an_idle_worker_keeps_no_answers(bench: Bench) -> None:
    class Large:
        pass

    await bench.pool.scale(1, 1)
    kept = weakref.ref(await bench.result(Large))
    await until(lambda: kept() is None)


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


@pytest.mark.parametrize("bench", [Courtesy(lambda: True)], indirect=True)
async def test_a_worker_of_the_background_has_a_low_priority(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    thread = await bench.result(threading.get_native_id)
    assert os.getpriority(os.PRIO_PROCESS, thread) >= courtesy.NICE


async def test_indexes_of_lost_workers_are_given_again(bench: Bench) -> None:
    """Accelerators go by them: the others would have two workers on one, and none on another."""
    indexes: list[int] = []
    bench.load = lambda index: indexes.append(index) or Loaded()  # type: ignore[func-returns-value]
    await bench.pool.scale(3, 3)
    first = bench.pool.roster.all()[0]
    first.stop()
    await until(lambda: len(indexes) == 4)
    assert indexes == [0, 1, 2, 0]


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
    assert not await bench.pool.roster.join(0.05)
    gate.set()
    assert await bench.pool.roster.join(10)


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
    assert await bench.pool.roster.join(10)


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
    assert await bench.pool.roster.join(10)


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


#: Prints by how many MB a process is larger with four workers that share 48 MB, and after them.
SHARING = """
import asyncio, psutil, torch
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.pool import Pool
from kserve_torch.engine.window import Window
from kserve_torch.messages import Verb
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
    def memory():  # without the libraries' files, of which more or less is mapped
        now = psutil.Process().memory_info()
        return now.rss - now.shared
    lane = Lane("m", "1.0", Verb.PREDICT, Window(1, 0.0, 100))
    skip = lambda *_: None
    pool = Pool(lane, lambda _: Loaded(), ran=skip, changed=skip, limits=Limits(), courtesy=None)
    before = memory()
    await pool.scale(4, 4)
    print((memory() - before) >> 20)
    pool.close()
    await pool.roster.join(10)
    print((memory() - before) >> 20)
asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is freed is another library's")
def test_workers_give_back_what_they_do_not_need(forks: Forks) -> None:
    with_them, after_them = map(int, forks.run(SHARING).split())
    assert with_them < 80
    assert after_them < 30
