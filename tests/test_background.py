import asyncio
import logging

import pytest

from kserve_torch.background import keep, to_the_end


async def test_the_result_comes_back() -> None:
    assert await to_the_end(asyncio.sleep(0, "done")) == "done"


async def test_a_failure_comes_back() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await to_the_end(fail())


async def test_it_goes_on_when_the_caller_has_left(caplog: pytest.LogCaptureFixture) -> None:
    begun, let_go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await let_go.wait()
        ended.set()
        raise ValueError("broken in the end")

    waiting = asyncio.create_task(to_the_end(work()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    let_go.set()
    with caplog.at_level(logging.ERROR):
        await ended.wait()
        await asyncio.sleep(0)
    assert "a change of models failed: broken in the end" in caplog.text


async def test_kept_work_is_a_task() -> None:
    assert await keep(asyncio.sleep(0, 1)) == 1
