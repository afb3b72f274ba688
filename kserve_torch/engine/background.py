"""Work that goes on when the client that waits for it has left."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

#: What has begun and not ended; the event loop itself would not hold on to it.
_UNFINISHED: set[asyncio.Task[Any]] = set()


def keep(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start ``work`` as a task that is not lost when nobody holds it."""
    task = asyncio.create_task(work)
    _UNFINISHED.add(task)
    task.add_done_callback(_UNFINISHED.discard)
    return task


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which goes on if the caller is cancelled before its end.

    For changes of models: half of one would be worse than one that nobody waits for. Its failure
    is logged then.
    """
    task = keep(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(log_failure)
        raise


async def joined(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Wait until these threads have ended, or ``seconds`` are over.

    On a thread of its own: those of the event loop are few, and one that waits for a handler that
    hangs would keep others from them.
    """
    waiting = [thread for thread in threads if thread.is_alive()]
    if not waiting or seconds <= 0:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def wait() -> None:
        ends = time.monotonic() + seconds
        for thread in waiting:
            thread.join(max(0.0, ends - time.monotonic()))
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, name="join", daemon=True).start()
    await ended.wait()


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log why a task that nobody waits for has failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("loading or unloading a model failed: %s", error, exc_info=error.__cause__)
