import asyncio
import gc
import logging
import weakref

import pytest

from kserve_torch.engine import tasks
from kserve_torch.engine.tasks import (
    Shared,
    give_up,
    keep,
    log_failure,
    to_the_end,
)
from kserve_torch.errors import DownloadFailed, LoadFailed, NotReady


async def test_the_result_comes_back() -> None:
    assert await to_the_end(asyncio.sleep(0, "done")) == "done"
    assert not tasks._AWAITED


async def test_a_failure_comes_back() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await to_the_end(fail())


class Failing:
    """Work that fails once it is let go."""

    def __init__(self) -> None:
        self.begun, self._let_go, self._ended = (asyncio.Event() for _ in range(3))

    async def work(self) -> None:
        self.begun.set()
        await self._let_go.wait()
        self._ended.set()
        raise ValueError("broken in the end")

    async def is_logged(self, caplog: pytest.LogCaptureFixture) -> bool:
        """Let it go; whether its failure is in the log, as nobody waits for it any more."""
        self._let_go.set()
        with caplog.at_level(logging.ERROR):
            await self._ended.wait()
            await asyncio.sleep(0)
        return "loading or unloading a model failed: broken in the end" in caplog.text


async def test_it_goes_on_when_the_caller_has_left(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    waiting = asyncio.create_task(to_the_end(failing.work()))
    await failing.begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await failing.is_logged(caplog)


async def test_nobody_waits_longer_than_the_server_lives(caplog: pytest.LogCaptureFixture) -> None:
    failing = Failing()
    waiting = asyncio.create_task(to_the_end(failing.work()))
    await failing.begun.wait()
    give_up()
    give_up()
    with pytest.raises(NotReady, match="the server is being stopped"):
        await waiting
    assert await failing.is_logged(caplog)


@pytest.mark.parametrize("kind", [LoadFailed, DownloadFailed, ValueError])
async def test_what_a_worker_has_logged_is_not_logged_again(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        raise kind("in short") from OSError("in detail")

    task = keep(work())
    task.add_done_callback(log_failure)
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "failed: in short" in caplog.text
    assert ("in detail" in caplog.text) == (kind is not LoadFailed)
    [record] = caplog.records
    told = {LoadFailed: type(None), DownloadFailed: OSError, ValueError: ValueError}[kind]
    assert type(record.exc_info and record.exc_info[1]) is told


async def test_work_that_was_cancelled_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    task = keep(asyncio.sleep(60))
    task.add_done_callback(log_failure)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert not caplog.records


async def test_kept_work_is_a_task_that_no_collection_of_garbage_ends() -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    assert await keep(asyncio.sleep(0, 1)) == 1
    kept = weakref.ref(keep(work()))
    await began.wait()
    gc.collect()
    task = kept()
    assert task is not None
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    del task
    gc.collect()
    assert kept() is None


async def test_who_comes_while_work_is_done_shares_the_next_time() -> None:
    times = 0
    let_go = asyncio.Event()

    async def work() -> None:
        nonlocal times
        times += 1
        await let_go.wait()

    shared = Shared(work)
    wanted = [asyncio.create_task(shared())]
    await asyncio.sleep(0)
    wanted += [asyncio.create_task(shared()) for _ in range(10)]
    await asyncio.sleep(0)
    let_go.set()
    await asyncio.gather(*wanted)
    assert times == 2
    await shared()
    assert times == 3
