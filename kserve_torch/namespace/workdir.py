"""A working directory per thread: handlers open files relative to their model (CONTRACT T-36)."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

#: Seconds to wait for the directory that threads share. A load that hangs never gives it back; the
#: others must get on within their startupTimeout.
PATIENCE = 30.0
#: Linux's unshare(2) flag: the thread gets its own root, working directory and umask.
_CLONE_FS = 0x200


class _Thread(threading.local):
    own = False


_thread = _Thread()
_shared = threading.RLock()
_explained = threading.Event()


def own_directory(folder: Path) -> bool:
    """Make ``folder`` the working directory of the calling thread alone, as long as it lives.

    Returns:
        False if the system does not allow it; then nothing has changed.
    """
    if not _thread.own and not _unshare():
        if not _explained.is_set():
            _explained.set()
            log.warning(
                "per-thread working directories are not available (a seccomp profile may forbid "
                "unshare): after loading, relative paths work in handlers with open() only"
            )
        return False
    _thread.own = True
    os.chdir(folder)
    return True


def has_own_directory() -> bool:
    """Whether the thread, or the one that started it, has a directory apart from the process's."""
    with suppress(OSError):  # only Linux has the file
        return _thread.own or not os.path.samefile(".", "/proc/self/cwd")
    return False


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in ``folder``; if threads share one directory, one at a time, and change back after.

    A thread that has waited for `PATIENCE` seconds goes ahead in whatever directory there is.
    """
    if _thread.own:
        os.chdir(folder)
        yield
        return
    if not _shared.acquire(timeout=PATIENCE):
        log.warning(
            "another model has been loading for %g s: this one loads without its working "
            "directory, where relative names work with open() only",
            PATIENCE,
        )
        yield
        return
    try:
        before = os.open(".", os.O_RDONLY)
        try:
            os.chdir(folder)
            yield
        finally:
            os.fchdir(before)
            os.close(before)
    finally:
        _shared.release()


def _unshare() -> bool:
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (AttributeError, OSError):
        return False
    return bool(unshare(_CLONE_FS) == 0)
