"""`Pool` with real threads; what its workers load is made here, and a row is what is to be done."""

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from kserve_torch import pool as pools
from kserve_torch.batcher import Lane, Ticket
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

    def __init__(self) -> None:
        self.load: Callable[[int], Any] = lambda index: Loaded()
        self.pool = Pool(
            Lane("m 1.0 predict", Window(1, 0.0, 100)),
            load=lambda index: self.load(index),
            ran=lambda ran: None,
            changed=lambda worker: None,
            retry_limit=60.0,
        )

    def submit(self, row: Callable[[], Any]) -> Ticket:
        return self.pool.lane.submit(Request(id=f"{next(_ids)}", model="m", rows=[row]))

    async def result(self, row: Callable[[], Any]) -> Any:
        return (await asyncio.wait_for(self.submit(row).future, 10)).results[0]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
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
