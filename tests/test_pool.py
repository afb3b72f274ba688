"""`Pool` with real threads; what its workers load is made here, and a row is what is to be done."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from kserve_torch import courtesy
from kserve_torch import pool as pools
from kserve_torch.batcher import Lane, Ticket
from kserve_torch.courtesy import Courtesy
from kserve_torch.messages import Reply, Request, RowReply
from kserve_torch.pool import Pool
from kserve_torch.window import Window

_ids = itertools.count()


class Loaded:
    """In the place of an `Instance`: calls its rows."""

    def use_threads(self, count: int) -> None:
        pass

    def run(self, requests: Sequence[Request]) -> list[Reply]:
        return [
            Reply(model="m", version="1.0", rows=[RowReply(result=row()) for row in one.rows])
            for one in requests
        ]

    def close(self) -> None:
        pass


class Bench:
    """A pool, and a say in what its loads do."""

    def __init__(self, polite: Courtesy | None = None) -> None:
        self.load: Callable[[int], Any] = lambda index: Loaded()
        self.pool = Pool(
            Lane("m 1.0 predict", Window(1, 0.0, 100)),
            load=lambda index: self.load(index),
            ran=lambda ran: None,
            changed=lambda worker: None,
            retry_limit=60.0,
            courtesy=polite,
        )

    def submit(self, row: Callable[[], Any]) -> Ticket:
        return self.pool.lane.submit(Request(id=f"{next(_ids)}", model="m", rows=[row]))

    async def result(self, row: Callable[[], Any]) -> Any:
        return (await asyncio.wait_for(self.submit(row).future, 10)).results[0]


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = Bench(getattr(request, "param", None))
    yield bench
    bench.pool.close()
    bench.pool.lane.close()
    assert await bench.pool.join(10)


async def until(condition: Callable[[], object]) -> None:
    """Ask again until ``condition`` holds, where nothing announces it."""
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.002)


async def test_of_many_idle_workers_the_minimum_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin to wait at the same time, and each is one too many by then."""
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.05)
    asked: list[bool] = []
    may_go = bench.pool._may_go

    def ask(worker: Any) -> bool:
        asked.append(may_go(worker))
        return asked[-1]

    monkeypatch.setattr(bench.pool, "_may_go", ask)
    await bench.pool.scale(4, 4)
    await bench.pool.scale(1, 4)
    await until(lambda: len(asked) >= 6)
    assert asked.count(True) == 3
    assert bench.pool.ready == bench.pool.size == 1
    assert await bench.result(lambda: "served") == "served"


async def test_who_is_scaled_down_while_it_works_does_not_count(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    gate, inside = threading.Event(), threading.Event()
    running = bench.submit(lambda: inside.set() or gate.wait(10))
    await asyncio.to_thread(inside.wait, 10)
    await bench.pool.scale(0, 0)
    assert (bench.pool.size, bench.pool.ready, len(bench.pool.workers())) == (0, 0, 1)
    await bench.pool.scale(1, 1)
    assert (bench.pool.size, bench.pool.ready, len(bench.pool.workers())) == (1, 1, 2)
    gate.set()
    assert (await running.future).results == [True]
    await until(lambda: len(bench.pool.workers()) == 1)
    assert await bench.result(lambda: "served") == "served"


async def test_a_call_is_not_given_up_for_one_that_has_ended(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    [worker] = bench.pool.workers()
    began = await bench.result(worker.busy_since)
    gate, inside = threading.Event(), threading.Event()
    running = bench.submit(lambda: inside.set() or gate.wait(10))
    await asyncio.to_thread(inside.wait, 10)
    assert worker.abandon(began) is None
    gate.set()
    assert (await running.future).results == [True]


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
