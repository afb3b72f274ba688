"""torch's switches that belong to the whole process, kept apart for each handler instance.

A handler's gradient mode, default device and thread count live in its worker's thread, as they
lived in its process on TorchServe, and reach nobody else. The default dtype does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kserve_torch.machine import cores

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
    """Thread counts worth a try: one, and all that operators may have, shared out over ``workers``.

    These are no more than the cores that we may use, and than ``OMP_NUM_THREADS``.
    """
    share = min(THREADS, cores()) // max(workers, 1)
    return (1, share) if share > 1 else (1,)


class DefaultDtype:
    """The default dtype that a handler chose when it was initialised.

    It holds during that handler's calls only. Two calls that run at the same moment share it all
    the same: torch has one per process.
    """

    def __init__(self) -> None:
        self._own = _DTYPE

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Initialise in here: what is set at the end becomes the handler's own."""
        try:
            yield
            self._own = torch.get_default_dtype()
        finally:
            _set(_DTYPE)

    def __enter__(self) -> None:
        """Begin a call."""
        _set(self._own)

    def __exit__(self, *error: object) -> None:
        """End it, and whatever it set."""
        _set(_DTYPE)


def _set(dtype: torch.dtype) -> None:
    if torch.get_default_dtype() is not dtype:
        torch.set_default_dtype(dtype)
