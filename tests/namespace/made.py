"""Namespaces that tests make."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kserve_torch.namespace.loader import Namespace

Make = Callable[..., Namespace]
NET = "class Net: pass\n"


def in_thread(work: Callable[[], Any]) -> Any:
    """The result of ``work`` on a fresh thread, or what it raised."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
