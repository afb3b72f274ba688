"""torch's process-wide state, kept apart for each handler instance.

A handler's gradient mode, default device and number of intra-op threads belong to its worker's
thread and affect no other, as with a process per worker on TorchServe. The default dtype is one for
the whole process.
"""

from __future__ import annotations

import functools
import inspect
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

#: Seconds that a call waits for calls with another default dtype.
PATIENCE = 2.0

_DTYPE = torch.get_default_dtype()
#: Most intra-op threads: what ``OMP_NUM_THREADS`` says, or one per core.
THREADS = torch.get_num_threads()
if "OMP_NUM_THREADS" not in os.environ:
    THREADS = min(THREADS, cores())


def use_threads(count: int) -> None:
    """Set the number of intra-op threads for the calling thread only.

    At most `THREADS` are set. A thread that never called this has what was last set on any thread.
    """
    count = min(count, THREADS)
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def thread_counts(workers: int) -> tuple[int, ...]:
    """Numbers of intra-op threads worth a trial: a worker's share, a quarter of it and so on to 1.

    All workers together get no more than the cores that we may use and ``OMP_NUM_THREADS``.
    """
    counts = [max(1, min(THREADS, cores()) // max(workers, 1))]
    while counts[0] > 1:
        counts.insert(0, max(1, counts[0] // 4))
    return tuple(counts)


class DtypeLock:
    """A lock that calls with the same default dtype hold together.

    Calls with another dtype wait until those have ended, in order of arrival, so that a stream of
    calls with one dtype cannot starve the others.

    It cannot deadlock. After `PATIENCE` seconds a waiting call goes ahead beside the running ones,
    which no longer count: they hang, take long, or wait for this very call.
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
        """Begin a call with ``dtype`` as the default; waits for calls with another one."""
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
            _set(self._dtype if self._running else _DTYPE)
            if self._waiting:
                self._changed.notify_all()

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
                "others that are still running, and now runs alongside them",
                self._patience,
            )


_dtype_lock = DtypeLock()


class DefaultDtype:
    """The default dtype that a handler chose when it was initialised.

    It applies to that handler's calls only. As torch has one per process, nothing with another one
    runs at the same time: no call, nor a handler's initialisation, which begins with torch's own. A
    dtype that is set in there, or for part of a call, briefly affects others too.
    """

    def __init__(self, lock: DtypeLock = _dtype_lock) -> None:
        self._own = _DTYPE
        self._lock = lock

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Initialise within it: the dtype that is set at the end becomes the handler's own."""
        self._lock.enter(self, _DTYPE)
        _thread.dtype = _DTYPE
        try:
            yield
            # torch's own value may be that of another handler's running call.
            self._own = _thread.dtype
        finally:
            self._lock.leave(self)

    def __enter__(self) -> None:
        """Begin a call."""
        self._lock.enter(self, self._own)

    def __exit__(self, *error: object) -> None:
        """End it, and whatever it set."""
        self._lock.leave(self)


def _set(dtype: torch.dtype) -> None:
    if torch.get_default_dtype() is not dtype:
        _set_default_dtype(dtype)


def _noting(setter: Callable[[Any], None]) -> Callable[[Any], None]:
    """``setter``, which also records what the calling thread set."""

    @functools.wraps(setter)
    def noted(value: Any, /) -> None:
        setter(value)
        _thread.dtype = value if isinstance(value, torch.dtype) else torch.get_default_dtype()

    return noted


def compiles() -> bool:
    """Whether a handler has called `torch.compile` on this thread.

    What was compiled is compiled anew, for seconds or minutes, by the first call with another
    number of threads: that is one of torch's guards.
    """
    return _thread.compiles


def note_trial() -> None:
    """The call that runs on this thread tries something out, and so takes longer than others."""
    _thread.tries = True


def has_tried() -> bool:
    """Whether a call on this thread has tried something out since this was last asked."""
    tries, _thread.tries = _thread.tries, False
    return tries


class _Thread(threading.local):
    dtype = _DTYPE
    compiles = False
    tries = False


_thread = _Thread()
_compile = torch.compile
_KEEPS_APART = "isolate_recompiles" in inspect.signature(torch.compile).parameters
_set_default_dtype = torch.set_default_dtype
_set_num_interop_threads = torch.set_num_interop_threads
_noted = _noting(torch.set_default_dtype), _noting(torch.set_default_tensor_type)


def _set_interop_threads_once(nthreads: int) -> None:
    """Ignore further numbers: torch takes only one, and only before such threads have work."""
    try:
        _set_num_interop_threads(nthreads)
    except RuntimeError:
        if nthreads <= 0:
            raise
        log.debug("torch keeps its %d interop threads", torch.get_num_interop_threads())


@functools.wraps(torch.compile)
def _noted_compile(*args: Any, **kwargs: Any) -> Any:
    """Torch's own, with what is compiled kept apart by caller, as it was in a process each.

    A function of a library would be compiled eight times for all instances of all models together,
    and then no more.
    """
    _thread.compiles = True
    if _KEEPS_APART:
        kwargs.setdefault("isolate_recompiles", True)
    return _compile(*args, **kwargs)


def install() -> None:
    """Put functions that note what a handler chooses into the place of torch's own."""
    torch.compile = _noted_compile
    torch.set_default_dtype, torch.set_default_tensor_type = _noted
    torch.set_num_interop_threads = _set_interop_threads_once
