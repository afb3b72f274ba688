"""Threads beside that of a test: workers that it leaves to themselves, those that read bodies."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kserve_torch.engine import aside

#: Seconds until a thread that was let go has surely ended.
END_SECONDS = 30.0


@asynccontextmanager
async def workers_end() -> AsyncIterator[None]:
    """Leave when every worker has ended that began within: none logs into another test."""
    before = set(threading.enumerate())
    yield
    workers = [
        thread for thread in set(threading.enumerate()) - before if " worker " in thread.name
    ]
    for thread in workers:
        await asyncio.to_thread(thread.join, END_SECONDS)
    assert not [thread.name for thread in workers if thread.is_alive()]


class Readers(ThreadPoolExecutor):
    """The threads that read large bodies, as which all count.

    Attributes:
        works: the names of the functions that they have run.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(1)
        self.works: list[str] = []
        monkeypatch.setattr(aside, "SMALL", 0)
        monkeypatch.setattr(aside, "_THREADS", self)

    def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``work(*args, **kwargs)``."""
        self.works.append(getattr(work, "func", work).__qualname__)
        return super().submit(work, *args, **kwargs)
