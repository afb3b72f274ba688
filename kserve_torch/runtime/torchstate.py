"""torch's switches that belong to the whole process, kept apart for each handler instance.

A handler's gradient mode, default device and thread count live in its worker's thread, as they
lived in its process on TorchServe, and reach nobody else. The default dtype does.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kserve_torch.runtime.machine import cores

log = logging.getLogger(__name__)

#: Seconds that a call waits for calls that want another default dtype.
PATIENCE = 2.0

_DTYPE = torch.get_default_dtype()
#: Threads that operators have at most: what the operator says, or one a core.
THREADS = torch.get_num_threads()
if "OMP_NUM_THREADS" not in os.environ:
    THREADS = min(THREADS, cores())


def use_threads(count: int) -> None:
    """Set the calling thread's number of threads for operators; no other thread's changes.

    A thread that never called this has what was last set in any thread.

    Args:
        count: at most `THREADS` are set.
    """
    count = min(count, THREADS)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def thread_counts(workers: int) -> tuple[int, ...]:
    """Thread counts worth a try, ascending: a worker's share of all threads, a quarter of that...

    The last one is 1. None is above the cores that we may use, or above ``OMP_NUM_THREADS``.

    Args:
        workers: among how many the threads are shared out.
    """
    counts = [max(1, min(THREADS, cores()) // max(workers, 1))]
    while counts[0] > 1:
        counts.insert(0, max(1, counts[0] // 4))
    return tuple(counts)


class Company:
    """Which calls run beside each other: those that want one default dtype of torch's one.

    Those that want another one wait until they have ended, in the order in which they came, so that
    a row of calls of one kind keeps nobody out.

    Nothing can hang on it. After `PATIENCE` seconds a call that waits goes ahead beside those that
    run, which from then on count for nothing: they hang, take long, or wait for this very call.

    Args:
        patience: seconds, see `PATIENCE`.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._dtype = _DTYPE
        self._running: set[object] = set()
        self._waiting: dict[object, torch.dtype] = {}
        self._warned = False

    def enter(self, call: object, dtype: torch.dtype) -> None:
        """Begin a call, with ``dtype`` as the default; wait for those that want another one."""
        with self._lock:
            if self._waiting or (self._running and self._dtype is not dtype):
                self._wait(call, dtype)
            self._running.add(call)
            self._dtype = dtype
            _set(dtype)

    def leave(self, call: object) -> None:
        """End a call, and whatever it set."""
        with self._lock:
            self._running.discard(call)
            self._restore()
            if self._waiting:
                self._changed.notify_all()

    def restore(self) -> None:
        """Set what those that run have as the default, or else what the process began with."""
        with self._lock:
            self._restore()

    def _restore(self) -> None:
        _set(self._dtype if self._running else _DTYPE)

    def _wait(self, call: object, dtype: torch.dtype) -> None:
        self._waiting[call] = dtype
        try:
            if not self._changed.wait_for(lambda: self._may_go(call, dtype), self._patience):
                self._give_up()
        finally:
            del self._waiting[call]
            self._changed.notify_all()

    def _may_go(self, call: object, dtype: torch.dtype) -> bool:
        earlier = itertools.takewhile(lambda other: other is not call, self._waiting)
        return all(self._waiting[other] is dtype for other in earlier) and (
            not self._running or self._dtype is dtype
        )

    def _give_up(self) -> None:
        self._running.clear()
        if not self._warned:
            self._warned = True
            log.warning(
                "models with different default dtypes take turns: a call has waited %g s for "
                "others that still run, and goes ahead beside them",
                self._patience,
            )


_company = Company()


class DefaultDtype:
    """The default dtype that a handler chose when it was initialised.

    It holds during that handler's calls only, and no call that wants another one runs beside them,
    because torch has one per process. What initialises may run long and hence waits for nobody: a
    dtype that is set there, or for a part of a call, is for the moment that of other calls too.
    """

    def __init__(self, company: Company = _company) -> None:
        self._own = _DTYPE
        self._company = company

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Initialise in here: what is set at the end becomes the handler's own."""
        _thread.dtype = _DTYPE
        try:
            yield
            # What torch says may be that of another handler's call, which runs meanwhile.
            self._own = _thread.dtype
        finally:
            self._company.restore()

    def __enter__(self) -> None:
        """Begin a call."""
        self._company.enter(self, self._own)

    def __exit__(self, *error: object) -> None:
        """End it, and whatever it set."""
        self._company.leave(self)


def _set(dtype: torch.dtype) -> None:
    if torch.get_default_dtype() is not dtype:
        _set_default_dtype(dtype)


def _noting(setter: Callable[[Any], None]) -> Callable[[Any], None]:
    """``setter``, which notes what the calling thread has set."""

    @functools.wraps(setter)
    def noted(value: Any, /) -> None:
        setter(value)
        _thread.dtype = value if isinstance(value, torch.dtype) else torch.get_default_dtype()

    return noted


class _Thread(threading.local):
    dtype = _DTYPE


_thread = _Thread()
_set_default_dtype = torch.set_default_dtype
_set_num_interop_threads = torch.set_num_interop_threads
_noted = _noting(torch.set_default_dtype), _noting(torch.set_default_tensor_type)


def _set_interop_threads_once(nthreads: int) -> None:
    """What torch takes one number for, before there is work for such threads."""
    try:
        _set_num_interop_threads(nthreads)
    except RuntimeError:
        if nthreads <= 0:
            raise
        log.debug("torch keeps its %d interop threads", torch.get_num_interop_threads())


def install() -> None:
    """Put functions that note what a handler chooses into the place of torch's own."""
    torch.set_default_dtype, torch.set_default_tensor_type = _noted
    torch.set_num_interop_threads = _set_interop_threads_once
