"""What an archive's code registers with ``atexit``: it is called when the instance is closed.

A worker's process would end then. Until the end of this one, the functions would keep a model that
is long unloaded.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class Exits:
    """One archive's functions, the last one first; called at the process's end if that is first."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def register(self, func: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """See `atexit.register`."""
        if not self._calls:
            atexit.register(self.run)
        self._calls.append((func, args, options))
        return func

    def unregister(self, func: Callable[..., Any], /) -> None:
        """See `atexit.unregister`."""
        self._calls[:] = [call for call in self._calls if call[0] != func]

    def run(self) -> None:
        """Call and forget them; what they raise is logged."""
        atexit.unregister(self.run)
        while self._calls:
            func, args, options = self._calls.pop()
            try:
                func(*args, **options)
            except BaseException:
                log.exception("a function that a handler has registered with atexit raised")
