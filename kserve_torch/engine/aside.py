"""Work on large bodies, on threads of its own: the event loop goes on with other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

#: Bytes up to which handing work to a thread costs more than it saves; most bodies have fewer.
SMALL = 1024 * 1024
#: Not the event loop's executor, whose threads may be taken by installations and downloads.
_THREADS = ThreadPoolExecutor(2, "body")


async def aside(size: int, work: Callable[..., T], *args: Any) -> T:
    """``work(*args)``, on another thread if it is about more than `SMALL` bytes."""
    if size <= SMALL:
        return work(*args)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *args)
