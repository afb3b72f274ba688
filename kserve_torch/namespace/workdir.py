"""A working directory per thread: handlers open files relative to their model (CONTRACT T-36).

Where the system has none, as in containers whose seccomp profile forbids unshare, all threads share
the process's: while a model loads that is its folder, afterwards that of the only model, or else
one that can be written to, which the server's own may not: pods have read-only root file systems.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import Counter
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
#: The directory in which the process was started; None if it must stay there.
_home: str | None = None
#: The directory in which several models work; it is made when there are several.
_common: Path | None = None
#: Folders of models whose threads share a directory, and how many instances each has.
_guests: Counter[Path] = Counter()
_counting = threading.Lock()


def own_directory(folder: Path) -> bool:
    """Make ``folder`` the working directory of the calling thread alone, as long as it lives.

    Returns:
        False if the system does not allow it; then nothing has changed.
    """
    if not _thread.own and not _unshare():
        return False
    _thread.own = True
    os.chdir(folder)
    return True


def follow_models() -> None:
    """Let the process work in the folder of the only model: it needs no directory itself."""
    global _home
    with suppress(OSError):  # removed meanwhile
        _home = os.getcwd()


def gather_in(folder: Path) -> None:
    """Let several models that share a directory work in ``folder``, which need not exist."""
    global _common
    _common = folder


def move_in(folder: Path) -> None:
    """An instance has begun whose thread shares the directory; what follows is `working_in`."""
    with _counting:
        _guests[folder] += 1
    if (_home is None or len(_guests) > 1) and not _explained.is_set():
        _explained.set()
        log.warning(
            "all threads share one working directory (a seccomp profile may forbid unshare): after "
            "loading, relative paths lead to a model's files with open() only%s",
            " while there is more than one model" if _home else "",
        )


def move_out(folder: Path) -> None:
    """Undo one `move_in`."""
    with _counting:
        _guests.subtract([folder])
        if not _guests[folder]:
            del _guests[folder]
    _settle()


def _settle() -> None:
    if _home is None or not _shared.acquire(blocking=False):
        return  # a model is loading, and whoever loads it settles afterwards
    try:
        with suppress(OSError):
            os.chdir(_place(_home))
    finally:
        _shared.release()


def _place(home: str) -> str | Path:
    """Where the process is to work."""
    guests = list(_guests)
    if len(guests) == 1:
        return guests[0]
    if not guests or _common is None:
        return home
    _common.mkdir(exist_ok=True)
    return _common


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
    if _thread.own:  # it is there, see `own_directory`
        yield
        return
    if not _shared.acquire(timeout=PATIENCE):
        log.warning(
            "other models have been loading for %g s: this one loads without its working "
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
        _settle()


def _unshare() -> bool:
    try:
        unshare = ctypes.CDLL(None).unshare
    except (AttributeError, OSError):
        return False
    return bool(unshare(_CLONE_FS) == 0)
