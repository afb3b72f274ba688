"""The engine as a whole: real archives, real threads, one event loop."""

import asyncio
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kserve_torch.engine.pacing import BURST, RATE
from kserve_torch.errors import (
    Conflict,
    DeadlineExceeded,
    Forbidden,
    InvalidArchive,
    InvalidInput,
    LoadFailed,
    ModelNotFound,
    OutOfMemory,
    Overloaded,
    ServingError,
    SettingError,
    VersionNotFound,
)
from kserve_torch.events import BatchRan, Event, Measured, Shed, WorkerChanged
from kserve_torch.messages import Reply, Request, Tensor
from kserve_torch.models import registry as registries
from kserve_torch.models.registry import Registry
from kserve_torch.models.state import State
from kserve_torch.server import startup_models

from ..makers import ECHO, make_archive
from ..waiting import until
from .actor import WARM, YAML, actor, request
from .serving import Gate, serving


def events(registry: Registry, kind: type[Event]) -> list[Any]:
    """Collects events of a kind from now on."""
    found: list[Any] = []
    registry.observers.add(found.append, [kind])
    return found


async def test_rows_in_results_out(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        reply = await registry.submit(request("a", "b"))
        assert (reply.model, reply.version, reply.results) == ("m", "1.0", ["a", "b"])
        assert (version.state, version.ready, registry.ready()) == (State.READY, True, True)
        assert reply.timing.batch_rows == 2


async def test_a_request_has_at_most_so_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "MAX_ROWS", 2)
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        assert (await registry.submit(request(1, 2))).results == [1, 2]
        with pytest.raises(InvalidInput, match="3 rows in one request, over 2"):
            await registry.submit(request(1, 2, 3))


async def gather(registry: Registry, *requests: Request) -> list[Reply | BaseException]:
    return await asyncio.gather(*map(registry.submit, requests), return_exceptions=True)


LISTED = """
model_metrics:
  counter:
    - {name: Seen, unit: Count, dimensions: [ModelName]}
"""
BY_NAME = """
from ts.metrics.metric_type_enum import MetricTypes

def handle(data, context):
    if data is None: return
    metrics = context.metrics
    metrics.get_metric("Seen").add_or_update(len(data), [context.model_name])
    metrics.get_metric("HandlerTime", MetricTypes.GAUGE).add_or_update(1.5, ["m", "Model"])
    return [1] * len(data)
"""


async def test_handlers_know_the_metrics_of_the_file(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": BY_NAME})
    (tmp_path / "metrics.yaml").write_text(LISTED)
    async with serving(tmp_path, "--metrics_config", str(tmp_path / "metrics.yaml")) as registry:
        measured = events(registry, Measured)
        await registry.register("m.mar")
        await registry.submit(request("a", "b"))
        assert [(e.name, e.kind, e.value) for e in measured] == [
            ("Seen", "counter", 2),
            ("HandlerTime", "gauge", 1.5),
        ]


async def test_a_metrics_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"metrics_config: .*/absent\.yaml: No such file"):
        async with serving(tmp_path, "--metrics_config", str(tmp_path / "absent.yaml")):
            pass


async def test_requests_are_batched_and_get_their_own_rows(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        ran = events(registry, BatchRan)
        replies = await gather(registry, *(request(f"row {i}", id=f"{i}") for i in range(4)))
        results = [reply.results for reply in replies if isinstance(reply, Reply)]
        assert results == [[[f"row {i}", 4, f"{i}"]] for i in range(4)]
        assert [(batch.rows, batch.requests, batch.calls) for batch in ran] == [(4, 4, 1)]


@pytest.mark.parametrize("arrays", [False, True])
async def test_what_a_handler_does_to_tensors_is_undone_when_they_are_run_again(
    tmp_path: Path, arrays: bool
) -> None:
    handler = f"""
class Changes:
    accepts_arrays = {arrays}
    def handle(self, data, context):
        taken = [row.pop("data") for row in data]
        if len(data) > 1:
            raise ValueError("boom")
        return [[str(values), getattr(values, "flags", None) is None or values.flags.writeable]
                for values in taken]
"""
    make_archive(
        tmp_path / "m.mar",
        {"handler.py": handler, "model-config.yaml": "batchSize: 4\nmaxBatchDelay: 1000"},
        configFile="model-config.yaml",
    )
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        given = [Tensor(name="x", datatype="INT64", array=np.array([i])) for i in range(4)]
        requests = [Request(id=f"{i}", model="m", rows=[row]) for i, row in enumerate(given)]
        replies = await gather(registry, *requests)
        answered = [reply.results for reply in replies if isinstance(reply, Reply)]
        assert answered == [[[f"[{i}]", not arrays]] for i in range(4)]


class Huge(np.ndarray[Any, Any]):
    """An array whose elements do not fit into memory as Python objects."""

    def tolist(self) -> Any:
        raise MemoryError


async def test_rows_that_do_not_fit_into_memory_are_nobody_elses_fault(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", YAML.replace("4", "2"))
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        [worker] = version.workers
        array = np.zeros(2).view(Huge)
        huge = Request(id="h", model="m", rows=[Tensor(name="a", datatype="FP64", array=array)])
        small, large = await gather(registry, request("a"), huge)
        assert isinstance(small, Reply)
        assert isinstance(large, OutOfMemory)
        assert list(version.workers) == [worker]


LOOPS = """
import asyncio

class Handler:
    def initialize(self, context):
        self.loop = asyncio.get_event_loop()

    def handle(self, data, context):
        if data[0]["data"] == "async":
            return self.answer()
        if data[0]["data"] == "close":
            self.loop.close()
            return [True]
        return asyncio.get_event_loop().run_until_complete(self.answer())

    async def answer(self):
        return [asyncio.get_running_loop() is self.loop]
"""


async def test_handlers_have_an_event_loop(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": LOOPS})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        for way in ("async", "sync", "async", "close"):
            assert (await registry.submit(request(way))).results == [True]
        assert version.workers[0].thread.is_alive()


async def test_refusals_without_end_are_held_back(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", "batchSize: 1\njobQueueSize: 1")
    async with serving(tmp_path) as registry:

        async def refused() -> float | None:
            try:
                await registry.submit(request(0.2))
            except Overloaded:
                return time.monotonic()
            return None

        await registry.register("m.mar")
        shed = events(registry, Shed)
        began = time.monotonic()
        times = await asyncio.gather(*(refused() for _ in range(BURST + 300)))
        ended = [when for when in times if when is not None]
        assert len(ended) > BURST + 200
        assert [event.reason for event in shed] == ["queue_full"] * len(ended)
        assert max(ended) - began > (len(ended) - BURST - 2) / RATE


class Word(str):
    """One that can be told from others, also when it is gone."""


async def test_an_answered_request_is_not_kept_until_its_deadline(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", "batchSize: 1")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        word = Word("a")
        kept = weakref.ref(word)
        await registry.submit(request(word, deadline=time.monotonic() + 1000.0))
        del word
        await until(lambda: kept() is None)


async def test_failed_requests_say_where_their_time_went(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", "batchSize: 1")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        shed = events(registry, Shed)
        (raised,) = await gather(registry, request("raise"))
        now = time.monotonic()
        running, waiting = await gather(
            registry, request(0.5, deadline=now + 0.4), request("late", deadline=now + 0.1)
        )
        for error in (raised, running):
            assert isinstance(error, ServingError)
            assert error.timing is not None
            assert error.timing.batch_rows == 1
            assert error.timing.handler > 0
        assert "while it ran" in str(running)
        assert [event.reason for event in shed] == ["deadline"]
        assert isinstance(waiting, DeadlineExceeded)
        assert waiting.timing is not None
        assert (waiting.timing.batch_rows, waiting.timing.handler) == (0, 0.0)
        assert waiting.timing.queued > 0.05


#: Its calls hang until the file is there.
HANGS = """
import pathlib, time
class H:
    def initialize(self, context): pass
    def handle(self, data, context):
        while not pathlib.Path({gate!r}).exists():
            time.sleep(0.005)
        return data
"""


def hanging(archive: Path, gate: Gate, yaml: str) -> None:
    """Write an archive whose handler hangs until the gate is open."""
    files = {**gate.guards(HANGS), "model-config.yaml": yaml}
    make_archive(archive, files, configFile="model-config.yaml")


@pytest.mark.parametrize("yaml", ["", "sequenceBatching: true\n"])
async def test_with_job_tickets_no_request_waits(tmp_path: Path, gate: Gate, yaml: str) -> None:
    free = 1 if yaml else 2
    yaml += "useJobTicket: true\nminWorkers: 2\nbatchSize: 8\nmaxBatchDelay: 60000\n"
    hanging(tmp_path / "m.mar", gate, yaml)
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        assert not version.batches
        running = [asyncio.ensure_future(registry.submit(request(n))) for n in range(free)]
        await until(lambda: version.statistics().running == free)
        with pytest.raises(Overloaded, match="no worker is free, and with useJobTicket no request"):
            await registry.submit(request("x"))
        gate.open()
        replies = await asyncio.gather(*running)
        assert [reply.results for reply in replies] == [[{"data": n}] for n in range(free)]
        assert (await registry.submit(request("x"))).results == [{"data": "x"}]


async def test_with_job_tickets_a_refused_request_has_a_worker_started(
    tmp_path: Path, gate: Gate
) -> None:
    hanging(tmp_path / "m.mar", gate, "useJobTicket: true\nminWorkers: 1\nmaxWorkers: 2\n")
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        running = [asyncio.ensure_future(registry.submit(request("x")))]
        await until(lambda: version.statistics().running == 1)
        with pytest.raises(Overloaded):
            await registry.submit(request("x"))
        await until(lambda: version.ready_workers == 2)
        running.append(asyncio.ensure_future(registry.submit(request("x"))))
        await until(lambda: version.statistics().running == 2)
        gate.open()
        await asyncio.gather(*running)


async def test_a_handler_hangs_also_if_nobody_waits_for_it(tmp_path: Path, gate: Gate) -> None:
    hanging(tmp_path / "m.mar", gate, "responseTimeout: 1\nclientTimeoutInMills: 500")
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        hung = asyncio.Event()
        registry.observers.add(
            lambda event: event.state == "HUNG" and hung.set(),  # type: ignore[union-attr]
            [WorkerChanged],
        )
        with pytest.raises(DeadlineExceeded, match="while it ran"):
            await registry.submit(request("x"))
        await asyncio.wait_for(hung.wait(), 10)
        assert version.statistics().hung == 1


async def test_two_versions_and_the_default(tmp_path: Path) -> None:
    one, two = ECHO, ECHO.replace('row.get("data")', '"two"')
    make_archive(tmp_path / "one.mar", {"handler.py": one})
    make_archive(tmp_path / "two.mar", {"handler.py": two}, modelVersion="2.0")
    async with serving(tmp_path) as registry:
        await registry.register("one.mar")
        await registry.register("two.mar")
        assert (await registry.submit(request("a"))).version == "1.0"
        asked = request("a", version="2.0")
        assert (await registry.submit(asked)).results == ["two"]
        with pytest.raises(Forbidden, match="default"):
            await registry.unregister("m", "1.0")
        registry.set_default("m", "2.0")
        assert (await registry.submit(request("a"))).version == "2.0"
        await registry.unregister("m", "1.0")
        with pytest.raises(VersionNotFound):
            registry.find("m", "1.0")
        with pytest.raises(Conflict, match=r"2\.0 is already registered"):
            await registry.register("two.mar")


async def test_no_request_fails_while_versions_change(tmp_path: Path) -> None:
    make_archive(tmp_path / "one.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "two.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path) as registry:
        await registry.register("one.mar")
        done = asyncio.Event()

        async def client() -> set[str]:
            versions = set()
            while not done.is_set():
                versions.add((await registry.submit(request("a"))).version)
            return versions

        clients = [asyncio.create_task(client()) for _ in range(4)]
        await registry.register("two.mar")
        registry.set_default("m", "2.0")
        await registry.unregister("m", "1.0")
        done.set()
        assert set().union(*await asyncio.gather(*clients)) == {"1.0", "2.0"}


async def test_load_replaces_what_serves_only_by_what_works(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path) as registry:
        await registry.load("m")
        make_archive(tmp_path / "m.mar", {"handler.py": "import absent_package"})
        with pytest.raises(LoadFailed, match="absent_package"):
            await registry.load("m")
        assert (await registry.submit(request("still"))).results == ["still"]
        make_archive(tmp_path / "m.mar", {"handler.py": ECHO}, modelVersion="7")
        await registry.load("m")
        assert [v.version for v in registry.versions("m")] == ["7"]
        await registry.unload("m")
        with pytest.raises(ModelNotFound):
            registry.find("m")
        with pytest.raises(ModelNotFound):
            await registry.load("nothing")


async def test_the_log_says_which_archive_a_client_could_not_have_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "torn.mar").write_bytes(b"no zip")
    async with serving(tmp_path) as registry:
        with pytest.raises(InvalidArchive):
            await registry.register("torn.mar")
        with pytest.raises(LoadFailed):
            await registry.load("torn")
        with pytest.raises(ModelNotFound):
            await registry.load("nothing")
    said = [text for text in caplog.messages if "is not loaded" in text]
    assert len(said) == 2
    assert all(text.startswith("torn.mar is not loaded: torn.mar: damaged") for text in said)


async def test_a_warm_up_has_the_rows_that_the_configuration_asks_for(tmp_path: Path) -> None:
    sample = '{"inputs": [{"name": "a", "shape": [2, 1], "datatype": "INT64", "data": [1, 2]}]}'
    make_archive(tmp_path / "m.mar", {"handler.py": WARM, "warmup.json": sample})
    config = tmp_path / "config.properties"
    config.write_text('models={"m": {"1.0": {"v2_rows": "batch"}}}')
    async with serving(tmp_path, "--ts-config", str(config)) as registry:
        version = await registry.register("m.mar")
        assert [tensor["shape"] for tensor in version.signature("inputs")] == [[-1, 1]]


async def test_the_first_of_several_start_up_versions_is_the_default(tmp_path: Path) -> None:
    files = {"handler.py": "import time\ntime.sleep(0.5)\n" + ECHO}
    make_archive(tmp_path / "a.mar", files, modelVersion="2.0")
    make_archive(tmp_path / "b.mar", {"handler.py": ECHO}, modelVersion="10.0")
    for options, default in ((), "2.0"), (("--models", "b.mar,a.mar"), "10.0"):
        async with serving(tmp_path, *options) as registry:
            await registry.start(startup_models(registry.settings))
            assert [v.version for v in registry.versions("m")] == ["2.0", "10.0"]
            assert registry.find("m").version == default
    make_archive(tmp_path / "a.mar", {"handler.py": "broken"}, modelVersion="2.0")
    async with serving(tmp_path) as registry:
        await registry.start(startup_models(registry.settings))
        assert registry.find("m").version == "10.0"
        assert registry.ready()


async def test_drain_waits_for_the_last_answer(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar", "batchSize: 1")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        last = asyncio.create_task(registry.submit(request(0.3)))
        await asyncio.sleep(0)
        await registry.drain()
        assert last.done()
        assert not registry.ready()


async def test_whoever_leaves_a_stream_takes_its_request_along(tmp_path: Path) -> None:
    actor(tmp_path / "m.mar")
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        async with registry.stream(request("a")) as (_, answering):
            await until(lambda: version.statistics().queued == 1)
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert version.statistics().queued == 0


async def test_a_description(tmp_path: Path) -> None:
    handler = ECHO.replace('row.get("data")', "context.get_request_header(0, 'describe')")
    make_archive(tmp_path / "m.mar", {"handler.py": handler})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        assert await version.describe() == "True"
