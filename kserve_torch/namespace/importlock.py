"""Imports take turns: models that load at the same time import the same packages.

Python locks each module separately. If two threads enter a cycle of imports at different modules
(most big packages have some, ``torchvision`` and ``transformers`` too), one of them gets a module
that is only half initialised: ``from torchvision.transforms import InterpolationMode`` fails, which
it never does with one thread. So a thread that works for an archive waits, before it takes its
first module's lock, until no other such thread is importing. It holds the turn for that outermost
import and all nested ones; what happens between imports, such as reading weights, stays parallel.
This is in the import machinery, so that a library's own late imports take turns as well.

It cannot deadlock. Threads without an archive never wait: the event loop's, and those that a module
starts and joins while it is imported. And a thread goes ahead without its turn, as in plain Python,
once the one that it waits for has made no progress for `PATIENCE` seconds: that one may be waiting
for a lock that this one holds. Until it makes progress, no thread waits for it again.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from typing import Any

#: Seconds without a module begun or finished, after which an import counts as stuck.
PATIENCE = 10.0

_bootstrap: Any = importlib.import_module("_frozen_importlib")


class _Thread(threading.local):
    depth = 0
    has_turn = False


class Turns:
    """The lock of all outermost imports.

    Args:
        wanted: whether the calling thread must take turns.
    """

    def __init__(self, wanted: Callable[[], bool], patience: float = PATIENCE) -> None:
        self._wanted = wanted
        self._patience = patience
        self._thread = _Thread()
        self._lock = threading.RLock()
        self._steps = 0
        #: `_steps` when the holder was found stuck: nobody waits for it until it makes a step.
        self._stuck_at = -1
        os.register_at_fork(after_in_child=self._forked)

    def begin(self) -> None:
        """Before a module's lock is taken; a thread's outermost import waits for its turn."""
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
        while True:
            steps = self._steps
            patience = 0 if steps == self._stuck_at else self._patience
            if self._lock.acquire(timeout=patience):
                return True
            if steps == self._steps:
                self._stuck_at = steps
                return False

    def _forked(self) -> None:
        """The thread with the turn is not in the new process, unless it is the one that forked."""
        self._lock = threading.RLock()
        if self._thread.depth and self._thread.has_turn:
            self._lock.acquire()


def install(wanted: Callable[[], bool]) -> None:
    """From now on imports take turns, on threads for which ``wanted`` is true."""

    class InTurn(_bootstrap._ModuleLockManager):  # type: ignore[misc]
        """Replaces importlib's, which holds a module's lock; tracebacks do not show its frames."""

        turns = Turns(wanted)

        def __enter__(self) -> None:
            self.turns.begin()
            try:
                super().__enter__()
            except BaseException:
                self.turns.end()
                raise

        def __exit__(self, *args: object, **kwargs: object) -> None:
            try:
                super().__exit__(*args, **kwargs)
            finally:
                self.turns.end()

    _bootstrap._ModuleLockManager = InTurn
