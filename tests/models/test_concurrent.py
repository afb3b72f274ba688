"""Handlers with ``asyncCommunication``: one worker runs many requests at once."""

import asyncio
import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.engine import concurrent, worker
from kserve_torch.engine.ticket import Ticket
from kserve_torch.engine.worker import WorkerState
from kserve_torch.errors import DeadlineExceeded, DeviceLost, HandlerError, InvalidInput
from kserve_torch.events import BatchRan
from kserve_torch.messages import Request, RowReply
from kserve_torch.models.registry import Registry
from kserve_torch.models.version import ModelVersion
from kserve_torch.runtime import devices

from ..makers import make_archive
from ..waiting import until
from .serving import serving

#: Notes who is there; a row says when it leaves: with two others, once the gate is open, or never.
HANDLER = """
import asyncio, gc, pathlib, threading, time
from kserve_torch.errors import BadRow
from ts.handler_utils.utils import send_intermediate_predict_response

class Meeting:
    async def initialize(self, context):
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.barrier = asyncio.Barrier(3)
        self.gate = pathlib.Path(context.system_properties["model_dir"], "gate")
        self.left = []
        self.inside = self.most = 0

    async def handle(self, data, context):
        assert asyncio.get_running_loop() is self.loop
        what = data[0]["data"]
        context.set_response_header(0, "what", what)
        if what == "raise": raise ValueError("boom")
        if what == "bad": raise BadRow(0, "data: unreadable")
        if what == "cancelled": raise asyncio.CancelledError
        if what == "short": return []
        if what == "stop": self.loop.stop()
        if what == "lock": self.context.lock = threading.Lock()
        if what == "gc": gc.disable()
        if what == "left": return [[*self.left]]
        if what == "block":
            while not self.gate.exists():
                time.sleep(0.002)
        if what == "most": return [self.most]
        if what == "parts":
            for part in range(5):
                await asyncio.sleep(0.25)
                send_intermediate_predict_response(
                    [part], context.request_ids, "", 200, context
                )
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.gate.with_name(f"inside {self.inside}").touch()
        try:
            if what == "never":
                await asyncio.Event().wait()
            if what == "gate":
                while not self.gate.exists():
                    await asyncio.sleep(0.002)
            if what.startswith("meet"):
                send_intermediate_predict_response(
                    [what + "!"], context.request_ids, "", 200, context
                )
                await self.barrier.wait()
        finally:
            self.left.append(what)
            self.inside -= 1
        return [[what, context.get_request_id(0)] for row in data]
"""
SYNCHRONOUS = """
def handle(data, context):
    return data and [len(data) for row in data]
"""


def archive(store: Path, handler: str = HANDLER, config: str = "") -> None:
    config = f"asyncCommunication: true\n{config}"
    files = {"handler.py": handler, "c.yaml": config}
    make_archive(store / "m.mar", files, configFile="c.yaml")


def request(what: str, **more: Any) -> Request:
    return Request(
        id=f"id of {what}", model="m", rows=[{"data": what}], element="instances[{}]", **more
    )


def open_gate(version: ModelVersion) -> None:
    assert version.archive is not None
    (version.archive.root / "gate").touch()


async def inside(version: ModelVersion, count: int) -> None:
    """Wait until so many requests have been in the handler at once; running ones may not be yet."""
    assert version.archive is not None
    await until((version.archive.root / f"inside {count}").exists)


async def ask(registry: Registry, *whats: str) -> list[Any]:
    """The results, or errors, of requests at once."""
    replies = await asyncio.gather(
        *(registry.submit(request(what)) for what in whats), return_exceptions=True
    )
    return [reply if isinstance(reply, BaseException) else reply.results[0] for reply in replies]


async def test_requests_run_at_once_each_with_a_context_of_its_own(tmp_path: Path) -> None:
    archive(tmp_path, config="batchSize: 8\nmaxBatchDelay: 60000")
    sent: dict[str, list[RowReply]] = {}
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        whats = ("meet 1", "meet 2", "meet 3")
        replies = await asyncio.gather(
            *(
                registry.submit(
                    request(what, parts=lambda rows, w=what: sent.setdefault(w, []).append(rows[0]))
                )
                for what in whats
            )
        )
        for what, reply in zip(whats, replies, strict=True):
            assert reply.results[0] == [what, f"id of {what}"]
            assert reply.rows[0].headers["what"] == what
            assert [part.result for part in sent[what]] == [f"{what}!"]


async def test_a_request_that_fails_fails_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        meet = ("meet 1", "meet 2", "meet 3")
        answers = await ask(registry, "raise", meet[0], "bad", *meet[1:], "cancelled", "short")
        assert [answer[0] for answer in answers if isinstance(answer, list)] == [*meet]
        errors = [str(one) for one in answers if not isinstance(one, list)]
        assert errors == [
            "ValueError: boom",
            "instances[0].data: unreadable",
            "CancelledError",
            "the handler answered 0 results for 1 rows",
        ]
        assert isinstance(answers[0], HandlerError)
        assert isinstance(answers[2], InvalidInput)
    assert caplog.text.count('raise ValueError("boom")') == 1


async def test_a_context_that_cannot_be_copied_fails_requests(tmp_path: Path) -> None:
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        await ask(registry, "lock")
        (answer,) = await ask(registry, "left")
        assert isinstance(answer, HandlerError)
        assert answer.message.startswith("TypeError: cannot pickle")


async def test_garbage_is_collected_after_what_a_handler_does(tmp_path: Path) -> None:
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        await ask(registry, "gc")
        assert gc.isenabled()


async def test_a_worker_that_lost_its_gpu_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        (first,) = version.workers

        def require(gpu_id: int | None) -> None:
            if threading.current_thread() is first.thread:
                raise DeviceLost("no GPU")

        monkeypatch.setattr(devices, "require", require)
        (answer,) = await ask(registry, "left")
        assert isinstance(answer, DeviceLost)
        await until(lambda: version.workers and first not in version.workers)
        assert first.state is WorkerState.FAILED
        assert await ask(registry, "left") == [[]]


async def test_a_request_that_takes_too_long_is_cancelled(tmp_path: Path) -> None:
    archive(tmp_path, config="responseTimeout: 1")
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        never, left = await ask(registry, "never", "left")
        assert isinstance(never, DeadlineExceeded)
        assert left == []
        assert await ask(registry, "left") == [["never"]]
        assert version.statistics().hung == 0


async def test_a_stream_may_take_as_long_for_each_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent, "GRACE", 0.1)
    archive(tmp_path, config="responseTimeout: 1")
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        assert await ask(registry, "parts") == [["parts", "id of parts"]]


async def test_a_call_ends_when_its_client_leaves(tmp_path: Path) -> None:
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        asked = asyncio.ensure_future(ask(registry, "gate", "never"))
        await inside(version, 2)
        asked.cancel()
        await until(lambda: version.statistics().running == 0)
        late, left = await asyncio.gather(
            registry.submit(request("never", deadline=time.monotonic() + 0.3)),
            registry.submit(request("left")),
            return_exceptions=True,
        )
        assert isinstance(late, DeadlineExceeded)
        assert left.results == [["gate", "never"]]
        await until(lambda: version.statistics().running == 0)
        assert await ask(registry, "left") == [["gate", "never", "never"]]


async def test_a_handler_that_blocks_its_loop_hangs_with_all_its_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent, "GRACE", 0.1)
    archive(tmp_path, config="responseTimeout: 1")
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        (first,) = version.workers
        take = first.lane.take

        def take_late(stopping: threading.Event, *limit: Any) -> list[Ticket]:
            batch = take(stopping, *limit)
            if batch and batch[0].request.id == "id of left":
                assert stopping.wait(30)  # the worker is given up before it notes what it took
            return batch

        monkeypatch.setattr(first.lane, "take", take_late)
        asked = asyncio.ensure_future(ask(registry, "gate", "block"))
        await until(lambda: version.statistics().running == 2)
        late = asyncio.ensure_future(ask(registry, "left"))
        assert [type(answer) for answer in await asked] == [DeadlineExceeded] * 2
        assert [str(answer) for answer in await late] == [
            "m 1.0 predict: the worker hung when it took the request"
        ]
        assert version.statistics().hung == 1
        monkeypatch.undo()
        assert await ask(registry, "left") == [[]]  # of another worker
        open_gate(version)
        await until(lambda: not version.statistics().hung)


async def test_a_request_that_another_one_has_held_up_is_cancelled_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent, "GRACE", 0.4)
    archive(tmp_path, config="responseTimeout: 1")
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        block = asyncio.ensure_future(ask(registry, "block"))
        await until(lambda: version.statistics().running == 1)
        never = asyncio.ensure_future(ask(registry, "never"))
        await until(lambda: version.statistics().running == 2)
        held_up = time.monotonic() + 2 * concurrent.GRACE
        await until(lambda: time.monotonic() > held_up)
        open_gate(version)
        assert [type(answer) for answer in (*await block, *await never)] == [list, DeadlineExceeded]
        assert await ask(registry, "left") == [["block", "never"]]  # of the same worker
        assert version.statistics().hung == 0


async def test_a_handler_that_stops_its_loop_gets_another_worker(tmp_path: Path) -> None:
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        gate, _ = await ask(registry, "gate", "stop")
        assert isinstance(gate, HandlerError)
        assert await ask(registry, "left") == [[]]


@pytest.mark.parametrize(("config", "most"), [("", 2), ("sequenceBatching: true", 1)])
async def test_requests_beyond_the_most_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, most: int
) -> None:
    monkeypatch.setattr(concurrent, "MOST_CALLS", 2)
    archive(tmp_path, config=config)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        asked = asyncio.ensure_future(ask(registry, *["gate"] * 5))
        await inside(version, most)
        open_gate(version)
        assert len(await asked) == 5
        assert await ask(registry, "most") == [most]


async def test_one_that_takes_long_takes_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent, "MOST_CALLS", 2)
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        ran: list[BatchRan] = []
        registry.observers.add(ran.append, [BatchRan])
        version = await registry.register("m.mar")
        long = asyncio.ensure_future(ask(registry, "gate"))
        await inside(version, 1)
        assert await ask(registry, *["left"] * 3) == [[]] * 3
        open_gate(version)
        await long
        await until(lambda: len(ran) == 4)
        assert {(one.rows, one.requests) for one in ran} == {(1, 1)}


async def test_a_version_that_is_unloaded_answers_first(tmp_path: Path) -> None:
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        asked = asyncio.ensure_future(ask(registry, "gate", "gate"))
        await until(lambda: version.statistics().running == 2)
        leaving = asyncio.ensure_future(registry.unregister("m"))
        await asyncio.sleep(0)
        open_gate(version)
        assert [answer[0] for answer in await asked] == ["gate", "gate"]
        await leaving


async def test_a_worker_that_leaves_answers_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent, "MOST_CALLS", 2)
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        first = asyncio.ensure_future(ask(registry, "gate", "gate"))
        await until(lambda: version.statistics().running == 2)
        await registry.scale(version, 2, 2)
        second = asyncio.ensure_future(ask(registry, "gate"))
        await until(lambda: version.statistics().running == 3)
        await registry.scale(version, 1, 1)
        open_gate(version)
        assert [answer[0] for answer in (*await first, *await second)] == ["gate"] * 3


async def idle_for_long() -> None:
    enough = time.monotonic() + 3 * worker.IDLE_SECONDS
    await until(lambda: time.monotonic() > enough)


async def test_idle_workers_above_the_minimum_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.05)
    archive(tmp_path)
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        (only,) = version.workers
        await idle_for_long()
        assert version.workers == [only]
        first = asyncio.ensure_future(ask(registry, "gate"))
        await until(lambda: version.statistics().running == 1)
        await registry.scale(version, 0, 1)
        second = asyncio.ensure_future(ask(registry, "gate"))
        await until(lambda: version.statistics().running == 2)
        await idle_for_long()
        assert not only.leaving
        open_gate(version)
        assert [answer[0] for answer in (*await first, *await second)] == ["gate", "gate"]
        await until(lambda: not version.statistics().workers)
        await until(lambda: only.state is WorkerState.STOPPED)


async def test_handlers_that_are_not_asynchronous_get_batches(tmp_path: Path) -> None:
    archive(tmp_path, SYNCHRONOUS)
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        reply = await registry.submit(Request(id="1", model="m", rows=[{"data": 1}, {"data": 2}]))
        assert reply.results == [2, 2]
