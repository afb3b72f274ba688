"""Calls and loads that hang: who is told, and who takes their place."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from kserve_torch.engine import backoff, courtesy, roster
from kserve_torch.engine.failures import LONGEST_ID
from kserve_torch.engine.place import place_of
from kserve_torch.engine.ticket import Ticket
from kserve_torch.engine.worker import Worker, WorkerState
from kserve_torch.errors import DeadlineExceeded, NotReady
from kserve_torch.messages import Request

from ..threads import workers_end
from ..waiting import until
from .bench import Bench, Held, Loaded


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
    assert bench.pool.give_up_hung() is None


async def test_a_call_is_not_given_up_for_one_that_has_ended(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    [worker] = bench.pool.roster.all()
    began = await bench.result(worker.busy_since)
    held = bench.hold()
    await held.begun()
    assert worker.abandon(began) is None
    assert not bench.pool._abandon(worker, began, "it is late", DeadlineExceeded("late"))
    held.gate.set()
    assert await held.ticket.future


async def test_a_call_that_sends_parts_to_somebody_goes_on(bench: Bench) -> None:
    await bench.pool.scale(1, 1)
    [worker] = bench.pool.roster.all()
    held = bench.hold()
    await held.begun()
    began = worker.busy_since()
    assert began is not None
    assert worker.instance is not None
    worker.instance.on_part()
    sent = worker.busy_since()
    assert sent is not None
    assert sent > began
    held.ticket.future.cancel()
    worker.instance.on_part()
    assert worker.busy_since() == sent
    held.gate.set()
    await bench.result(lambda: None)
    worker.instance.on_part()  # of a thread that the handler left behind
    await until(lambda: worker.busy_since() is None)


@pytest.mark.parametrize("bench", [{"startup_timeout": 0.2}], indirect=True)
async def test_a_load_that_hangs_is_given_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    held = bench.load = Held()
    with pytest.raises(NotReady, match=r"not ready within startupTimeout, 0\.2 s"):
        await bench.pool.scale(1, 1)
    assert (bench.pool.roster.hung, bench.pool.roster.size) == (1, 0)
    waiting = bench.submit(lambda: "never")
    bench.pool.staffing.relieve()
    with pytest.raises(NotReady, match="startupTimeout"):
        await waiting.future
    bench.load = lambda index: Loaded()
    bench.pool.staffing._startup_seconds = 10.0  # on a busy machine a thread may start late
    await bench.pool.scale(1, 1)
    assert await bench.result(lambda: "served") == "served"
    held.gate.set()
    await until(lambda: not bench.pool.roster.hung)
    await until(lambda: "is no longer hung" in caplog.text)
    assert bench.pool.roster.size == 1
    assert "; it is at threading.py:" in caplog.text
    assert "requests that fail: none" in caplog.text


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_the_log_says_where_a_call_hangs_and_which_requests_fail(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.pool.scale(1, 1)
    [worker] = bench.pool.roster.all()
    held = bench.hold()
    await until(lambda: " in wait < bench.py:" in place_of(worker.thread))
    bench.pool.give_up_hung()
    held.gate.set()
    with pytest.raises(DeadlineExceeded) as failure:
        await held.ticket.future
    [line] = [text for text in caplog.messages if "is hung" in text]
    assert " in wait < bench.py:" in line
    assert line.endswith(f"; requests that fail: {held.ticket.request.id}")
    assert "bench.py" not in str(failure.value)


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_the_log_shortens_the_ids_of_requests_that_fail(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.pool.scale(1, 1)
    held = Held()
    held.ticket = bench.pool.lane.submit(Request(id="i" * 1000, model="m", rows=[held]))
    await held.begun()
    bench.pool.give_up_hung()
    held.gate.set()
    with pytest.raises(DeadlineExceeded):
        await held.ticket.future
    [line] = [text for text in caplog.messages if "is hung" in text]
    assert line.endswith(f"; requests that fail: {'i' * LONGEST_ID}")


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_what_waits_for_a_pool_that_is_worn_out_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "HUNG_LIMIT", 1)
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
    monkeypatch.setattr(roster, "HUNG_LIMIT", 2)
    monkeypatch.setattr(backoff, "BACK_OFF", (0.0,))
    await bench.pool.scale(3, 3)
    held = [bench.hold(), bench.hold()]
    for one in held:
        await one.begun()
    bench.pool.give_up_hung()
    assert bench.pool.roster.size == 1
    held[0].gate.set()
    await until(lambda: bench.pool.roster.ready == 3)
    assert bench.pool.roster.hung == 1
    held[1].gate.set()
    await until(lambda: not bench.pool.roster.hung)
    assert (bench.pool.roster.size, len(bench.pool.staffing._pauses)) == (3, 0)
    for one in held:
        with pytest.raises(DeadlineExceeded):
            await one.ticket.future


@pytest.mark.parametrize("bench", [{"response_timeout": 0.0}], indirect=True)
async def test_all_that_hang_at_once_are_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "BACK_OFF", (0.1,))
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
    monkeypatch.setattr(backoff, "BACK_OFF", (0.0,))
    await bench.pool.scale(1, 1)
    for _ in range(2):
        held = bench.hold()
        await held.begun()
        bench.pool.give_up_hung()
        held.gate.set()
        with pytest.raises(DeadlineExceeded):
            await held.ticket.future
        await until(lambda: bench.pool.roster.ready and not bench.pool.roster.hung)
    assert not bench.pool.staffing.given_up
    assert await bench.result(lambda: "served") == "served"


@pytest.mark.parametrize("bench", [{"startup_timeout": 0.2}], indirect=True)
async def test_a_worker_that_loaded_too_late_has_ended_once(bench: Bench) -> None:
    held = bench.load = Held()
    with pytest.raises(NotReady):
        await bench.pool.scale(1, 1)
    bench.load = lambda index: Loaded()
    bench.pool.staffing._startup_seconds = 10.0  # as above
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
        assert await bench.pool.roster.join(10)


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
    await until(lambda: not bench.pool.roster.hung)
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
