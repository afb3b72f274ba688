"""Worker threads that a test leaves to themselves, as those that hang."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
