"""Imports take turns: models that load at the same time import the same packages.

Python locks each module by itself. Where two threads enter a circle of modules at different places
(``torchvision``, ``transformers`` and most big packages have some) it hands one of them a module
that is half done, and ``from torchvision.transforms import InterpolationMode`` fails in a process
where it always worked alone. So a thread that works for an archive waits, before it takes its first
module's lock, until no other such thread is importing. The lock is held for that outermost import,
with all that it imports in turn; what goes on between imports, such as reading weights, stays
parallel. It sits in the import machinery, hence a library's own late imports take turns as well.

Nothing can hang on it. A thread without an archive never waits: the event loop's, and those that a
module starts and joins while it is imported. And a thread that waits on another one which has come
no further for `PATIENCE` seconds goes ahead without its turn, as every thread of Python does: the
other one may be waiting for a lock that this one holds.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

#: Seconds without a module begun or done, after which an import is taken to be stuck.
PATIENCE = 10.0

_bootstrap: Any = importlib.import_module("_frozen_importlib")


class _Thread(threading.local):
    depth = 0
    has_turn = False


class Turns:
    """The lock of all outermost imports.

    Args:
        wanted: whether the calling thread takes turns with others.
        patience: seconds, see `PATIENCE`.
    """

    def __init__(self, wanted: Callable[[], bool], patience: float = PATIENCE) -> None:
        self._wanted = wanted
        self._patience = patience
        self._thread = _Thread()
        self._lock = threading.RLock()
        self._steps = 0
        os.register_at_fork(after_in_child=self._forked)

    def begin(self) -> None:
        """Before a module's lock is taken; the outermost one of a thread waits for its turn."""
        if self._thread.depth == 0:
            self._thread.has_turn = self._wanted() and self._wait()
        self._thread.depth += 1
        self._steps += self._thread.has_turn

    def end(self) -> None:
        """After a module's lock was released."""
        self._thread.depth -= 1
        self._steps += self._thread.has_turn
        if self._thread.depth == 0 and self._thread.has_turn:
            self._lock.release()

    def _wait(self) -> bool:
        steps = -1
        while steps != self._steps:
            steps = self._steps
            if self._lock.acquire(timeout=self._patience):
                return True
        return False

    def _forked(self) -> None:
        """The thread that had the turn is not there in a new process, unless it did the fork."""
        self._lock = threading.RLock()
        if self._thread.depth and self._thread.has_turn:
            self._lock.acquire()


def install(wanted: Callable[[], bool]) -> None:
    """From now on the imports of all threads that ``wanted`` says yes to take turns."""

    class InTurn(_bootstrap._ModuleLockManager):  # type: ignore[misc]
        """What importlib holds a module's lock with; no frame of it is seen in tracebacks."""

        turns = Turns(wanted)

        def __enter__(self) -> None:
            self.turns.begin()
            try:
                super().__enter__()
            except BaseException:
                self.turns.end()
                raise

        def __exit__(self, *args: object, **kwargs: object) -> None:
            super().__exit__(*args, **kwargs)
            self.turns.end()

    _bootstrap._ModuleLockManager = InTurn
