"""Explanations beside predictions, and how workers share the cores."""

import asyncio
import threading
from pathlib import Path

import pytest

from kserve_torch.engine import courtesy, pool, queues, roster
from kserve_torch.errors import DeadlineExceeded
from kserve_torch.messages import Verb
from kserve_torch.runtime import torchstate

from ..makers import make_archive
from ..waiting import until
from .actor import actor, request
from .serving import Gate, serving


async def test_explanations_leave_operators_no_more_threads_than_they_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = """
import torch
class Threads:
    def initialize(self, context):
        self.most = torch.get_num_threads()
    def handle(self, data, context):
        return [self.most] * len(data)
"""
    make_archive(tmp_path / "m.mar", {"handler.py": handler})
    monkeypatch.setattr(torchstate, "THREADS", 4)
    for module in (torchstate, queues):
        monkeypatch.setattr(module, "cores", lambda: 4)
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        predicted = await registry.submit(request("a"))
        explained = await registry.submit(request("a", verb=Verb.EXPLAIN))
    assert (predicted.results, explained.results) == ([4], [2])


async def test_predictions_leave_half_of_the_cores_to_an_explanation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = """
import torch
def handle(data, context):
    return [torch.get_num_threads()] * len(data or ())
"""
    make_archive(tmp_path / "m.mar", {"handler.py": handler})
    monkeypatch.setattr(torchstate, "THREADS", 4)
    monkeypatch.setattr(torchstate, "cores", lambda: 4)
    monkeypatch.setattr(pool, "BUSY_SECONDS", 60.0)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")

        async def seen() -> set[int]:
            replies = [await registry.submit(request("a")) for _ in range(20)]
            return {reply.results[0] for reply in replies}

        assert await seen() == {1, 4}
        await registry.submit(request("a", verb=Verb.EXPLAIN))
        assert await seen() == {2}
        monkeypatch.setattr(pool, "BUSY_SECONDS", 0.0)
        while version.statistics().running:  # noqa: ASYNC110  # a thread of low priority
            await asyncio.sleep(0.001)
        assert 2 not in await seen()


async def test_workers_share_the_cores_with_those_at_work_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = f"""
import os, time, torch
def handle(data, context):
    while data and data[0]["data"] == "stay" and not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.001)
    return [torch.get_num_threads()] * len(data or ())
"""
    files = {"handler.py": handler, "c.yaml": "minWorkers: 2\nmaxWorkers: 2"}
    make_archive(tmp_path / "m.mar", files, configFile="c.yaml")
    monkeypatch.setattr(torchstate, "THREADS", 4)
    monkeypatch.setattr(torchstate, "cores", lambda: 4)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        staying = asyncio.create_task(registry.submit(request("stay")))
        while not version.statistics().running:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.001)
        beside = await registry.submit(request("a"))
        (tmp_path / "go").touch()
        assert (beside.results, (await staying).results) == ([2], [4])


async def test_explanations_run_beside_predictions(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", "batchSize: 1")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        slow = asyncio.create_task(registry.submit(request(1.0, verb=Verb.EXPLAIN)))
        for _ in range(5):
            await registry.submit(request("quick"))
        assert not slow.done()
        assert (await slow).results[0][0] == 1.0


@pytest.mark.parametrize("cores", [1, 2])
async def test_explanations_that_queue_get_a_second_worker_at_once_if_there_is_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(queues, "cores", lambda: cores)
    actor(tmp_path / "m.mar", "batchSize: 1")

    def explainers() -> list[threading.Thread]:
        named = "m 1.0 explain worker"
        return [thread for thread in threading.enumerate() if thread.name.startswith(named)]

    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        await registry.submit(request(0.0, verb=Verb.EXPLAIN))
        assert len(explainers()) == 1
        await asyncio.gather(*(registry.submit(request(0.01, verb=Verb.EXPLAIN)) for _ in "123"))
        assert len(explainers()) == cores


STAYS = """
import pathlib, time
def handle(data, context):
    while data and not pathlib.Path({gate!r}).exists():
        time.sleep(0.001)
    return data
"""


async def test_an_explanation_that_comes_while_another_runs_does_not_wait_for_it(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "cores", lambda: 2)
    make_archive(tmp_path / "m.mar", gate.guards(STAYS))
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        first = asyncio.create_task(registry.submit(request(1, verb=Verb.EXPLAIN)))
        await until(lambda: version.statistics().running == 1)
        second = asyncio.create_task(registry.submit(request(2, verb=Verb.EXPLAIN)))
        await until(lambda: version.statistics().running == 2)
        gate.open()
        await asyncio.gather(first, second)


async def test_explanations_that_hang_count_for_liveness(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "HUNG_LIMIT", 1)
    yaml = {"model-config.yaml": "responseTimeout: 1"}
    make_archive(tmp_path / "m.mar", gate.guards(STAYS) | yaml, configFile="model-config.yaml")
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        with pytest.raises(DeadlineExceeded):
            await registry.submit(request(1, verb=Verb.EXPLAIN))
        assert not version.ready
        assert not registry.live()
        gate.open()
        await until(registry.live)


TIMES = """
import time

def handle(data, context):
    if data is None:
        return None
    began = time.monotonic()
    time.sleep(data[0]["data"])
    return [[began, time.monotonic()]] * len(data)
"""


@pytest.mark.parametrize("predicting", [True, False])
async def test_explanations_give_way_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predicting: bool
) -> None:
    monkeypatch.setattr(queues, "cores", lambda: 2)
    monkeypatch.setattr(pool, "BUSY_SECONDS", 60.0)
    make_archive(tmp_path / "m.mar", {"handler.py": TIMES})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")

        async def explain(*seconds: float) -> list[tuple[float, float]]:
            asked = (registry.submit(request(each, verb=Verb.EXPLAIN)) for each in seconds)
            return sorted(reply.results[0] for reply in await asyncio.gather(*asked))

        await explain(0.05, 0.05, 0.05)  # now there are two workers
        if predicting:
            await registry.submit(request(0.0))
        (_, first), (second, _) = await explain(0.2, 0.2)
        assert (first <= second) is predicting


async def test_explanations_keep_to_the_cpu_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested = threading.Event()
    monkeypatch.setattr(queues, "cpu_limit", lambda: 1.5)
    monkeypatch.setattr(
        courtesy.Courtesy, "_rest", lambda self, *_: self._limit == 1.5 and rested.set()
    )
    actor(tmp_path / "m.mar")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        await registry.submit(request(0.0, verb=Verb.EXPLAIN))
        assert await asyncio.to_thread(rested.wait, 10)
