"""Work that goes on after the client that waits for it has left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from kserve_torch.errors import NotReady, ServerError, ServingError

T = TypeVar("T")

log = logging.getLogger(__name__)

#: The running tasks; the event loop itself keeps only weak references.
_UNFINISHED: set[asyncio.Task[Any]] = set()

#: What callers of `to_the_end` wait for, and the tasks that it comes from.
_AWAITED: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}


def keep(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start ``work`` as a task to which the caller need not keep a reference."""
    task = asyncio.create_task(work)
    _UNFINISHED.add(task)
    task.add_done_callback(_UNFINISHED.discard)
    return task


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which goes on if the caller is cancelled.

    For changes of models, which must not stop half way. If nobody waits any more, a failure is
    logged.

    Raises:
        NotReady: the server ends before the work, see `give_up`.
    """
    task = keep(work)
    awaited = asyncio.shield(task)
    _AWAITED[awaited] = task
    try:
        return await awaited
    except asyncio.CancelledError:
        task.add_done_callback(log_failure)
        raise
    finally:
        del _AWAITED[awaited]


def give_up() -> None:
    """Let no caller of `to_the_end` wait any more: a model that loads holds up no server's end."""
    for awaited, task in _AWAITED.items():
        if not awaited.done():
            awaited.set_exception(NotReady("the server is being stopped"))
            task.add_done_callback(log_failure)


class Shared:
    """Work that is done once for all who want it at the moment.

    Those who ask for it while it is being done share the next time, which begins after that.

    Args:
        work: what is to be done; it must not fail.
    """

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._turn = asyncio.Lock()
        self._wanted = self._begun = 0

    async def __call__(self) -> None:
        """Wait until the work was done once, from its beginning."""
        self._wanted += 1
        wanted = self._wanted
        async with self._turn:
            if self._begun < wanted:
                self._begun = self._wanted
                await self._work()


def log_failure(task: asyncio.Task[Any]) -> None:
    """Log why a task that nobody waits for has failed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("loading or unloading a model failed: %s", error, exc_info=_untold(error))


def _untold(error: BaseException) -> BaseException | None:
    """What the log does not have yet: a worker that failed to start has said why."""
    if isinstance(error, ServerError):
        return None
    return error.__cause__ if isinstance(error, ServingError) else error
