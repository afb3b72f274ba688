"""Workers that clients ask for, and those that pressure brings."""

import asyncio
import gc
import logging
import threading
import weakref
from pathlib import Path

import pytest

from kserve_torch.errors import (
    LoadFailed,
    NotReady,
    OutOfMemory,
)
from kserve_torch.events import WorkerChanged
from kserve_torch.messages import Verb
from kserve_torch.models.describe import model_version
from kserve_torch.models.state import State
from kserve_torch.models.version import ModelVersion
from kserve_torch.server import startup_models

from ..makers import ECHO, make_archive
from ..waiting import until
from .actor import WARM, actor, request
from .serving import GATED, Gate, serving


async def test_workers_come_and_go(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", "batchSize: 1\nminWorkers: 1\nmaxWorkers: 1")
    async with serving(tmp_path) as registry:
        changes: list[WorkerChanged] = []
        registry.observers.add(changes.append, [WorkerChanged])
        version = await registry.register("m.mar")
        assert await registry.scale(version, 3, 3) == 3
        assert version.statistics().workers == {"READY": 3}
        assert [(change.state, change.seconds > 0) for change in changes] == [("READY", True)] * 3
        threads = [worker.thread for worker in version.workers]
        await registry.scale(version, 1, 1)
        for thread in threads[1:]:
            await asyncio.to_thread(thread.join, 5)
        assert version.statistics().workers == {"READY": 1}
        assert await registry.scale(version, 0, 1) == 1
        assert (await registry.submit(request("a"))).results[0][0] == "a"
        assert await registry.scale(version, 0, 0) == 0
        await asyncio.to_thread(threads[0].join, 5)
        with pytest.raises(NotReady, match="no worker"):
            await registry.submit(request("a"))
        # Metrics forget how long a worker took to load with the first change that says 0.
        ends = [change.seconds for change in changes if change.state == "STOPPED"]
        assert ends == [0.0] * 3


async def test_workers_that_finish_a_call_before_they_go_are_not_described_as_ready(
    tmp_path: Path, gate: Gate
) -> None:
    handler = GATED.replace("is None", "is not None")
    make_archive(tmp_path / "m.mar", gate.guards(handler))
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar", workers=2)
        calls = [asyncio.create_task(registry.submit(request("a"))) for _ in range(2)]
        await until(lambda: version.statistics().running == 2)

        async def states_with(workers: int) -> list[str]:
            await registry.scale(version, workers, workers)
            return [worker["status"] for worker in model_version(version)["workers"]]

        assert await states_with(2) == ["READY", "READY"]
        assert await states_with(1) == ["READY", "UNLOADING"]
        assert await states_with(0) == ["UNLOADING", "UNLOADING"]
        gate.open()
        await asyncio.gather(*calls)


async def test_calls_that_scale_at_the_same_time_do_not_add_up(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        ready = await asyncio.gather(*(registry.scale(version, 4, 4) for _ in "123"))
        assert ready == [4, 4, 4]
        assert len(version.workers) == 4


async def test_scaling_that_fails_changes_nothing(tmp_path: Path) -> None:
    full = tmp_path / "full"
    make_archive(tmp_path / "m.mar", {"handler.py": LOADS_WHILE.format(str(full), ECHO)})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        full.touch()
        with pytest.raises(OutOfMemory):
            await registry.scale(version, 3, 3)
        assert (version.scaled_to, version.ready_workers) == ((1, 1), 1)
        assert (await registry.submit(request("a"))).results == ["a"]
        full.unlink()
        assert await registry.scale(version, 3, 3) == 3


async def test_who_scales_what_is_unloaded_is_told(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    gate.open()
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        gate.path.unlink()
        scaling = asyncio.ensure_future(registry.scale(version, 2, 2))
        await until(lambda: len(version.workers) == 2)
        gone = registry.unload("m")
        await until(lambda: version.state is State.UNLOADING)
        gate.open()
        with pytest.raises(NotReady, match="was unloaded"):
            await scaling
        await gone


LOADS_WHILE = """
import os
if os.path.exists({!r}): raise MemoryError
{}
"""


async def test_scaling_is_another_try_for_what_failed_to_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kserve_torch")
    broken = tmp_path / "broken"
    broken.touch()
    files = {"handler.py": f"import os\nif os.path.exists({str(broken)!r}): 1 / 0\n{ECHO}"}
    make_archive(tmp_path / "m.mar", files)
    make_archive(tmp_path / "torn.mar", {"handler.py": ECHO})
    (tmp_path / "torn.mar").write_bytes(b"no zip")
    async with serving(tmp_path) as registry:
        await registry.start(startup_models(registry.settings))
        version = registry.find("m")
        with pytest.raises(LoadFailed, match="ZeroDivisionError"):
            await registry.scale(registry.find("m"), 1, 1)
        assert await registry.scale(version, 0, 0) == 0
        assert version.state is State.UNAVAILABLE
        assert "ZeroDivisionError" in version.reason
        broken.unlink()
        assert await registry.scale(registry.find("m"), 2, 2) == 2
        assert (version.state, version.ready, version.reason) == (State.READY, True, "")
        assert "model m 1.0 is ready" in caplog.messages
        assert (await registry.submit(request("a"))).results == ["a"]
        with pytest.raises(NotReady, match="damaged"):
            await registry.scale(registry.find("torn"), 1, 1)


async def test_without_workers_a_model_is_not_kept_in_memory(tmp_path: Path) -> None:
    sample = '{"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [1]}]}'
    make_archive(tmp_path / "m.mar", {"handler.py": WARM, "warmup.json": sample})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        signature = version.signature("outputs")
        assert signature
        instance = weakref.ref(version.workers[0].instance)

        def gone() -> bool:
            gc.collect()
            return instance() is None

        await registry.scale(version, 0, 0)
        await until(gone)
        assert version.signature("outputs") == signature
        await registry.scale(version, 1, 1)
        assert (await registry.submit(request("a"))).results == [[1.0]]


async def test_pressure_brings_another_worker(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", "batchSize: 1\nminWorkers: 1\nmaxWorkers: 2")
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        early = [asyncio.create_task(registry.submit(request(0.2))) for _ in range(3)]
        await asyncio.wait(early, return_when=asyncio.FIRST_COMPLETED)
        late = [asyncio.create_task(registry.submit(request(0.01))) for _ in range(3)]
        await asyncio.gather(*early, *late)
        assert len(version.workers) == 2


async def test_a_burst_brings_another_worker(tmp_path: Path) -> None:
    """Without later arrivals, and whatever a batch of one row may wait for more."""
    yaml = "batchSize: 1\nmaxBatchDelay: 60000\nminWorkers: 1\nmaxWorkers: 2"
    actor(tmp_path / "m.mar", yaml)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        await asyncio.gather(*(registry.submit(request(0.1)) for _ in range(3)))
        assert len(version.workers) == 2


async def test_close_ends_every_thread(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    before = threading.enumerate()
    async with serving(tmp_path) as registry:
        version: ModelVersion = await registry.register("m.mar")
        await registry.submit(request("x", verb=Verb.EXPLAIN))
        threads = [t for t in threading.enumerate() if t not in before and "worker" in t.name]
        assert len(threads) == 2
    assert version.state is State.UNLOADING
    assert not any(thread.is_alive() for thread in threads)
