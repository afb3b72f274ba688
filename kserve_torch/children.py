"""Processes that handlers start: they end with the server, and do not share its signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

#: The signals that stop the server.
SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Seconds that child processes have to end after SIGTERM.
CHILD_SECONDS = 1.0


class Children:
    """The child processes that are started from now on; earlier ones are the calling program's."""

    def __init__(self) -> None:
        self._others = multiprocessing.active_children()

    def end(self) -> None:
        """End them: else they would live on and keep the ports."""
        children = [one for one in multiprocessing.active_children() if one not in self._others]
        for child in children:
            child.terminate()
        ends = time.monotonic() + CHILD_SECONDS
        for child in children:
            child.join(max(0.0, ends - time.monotonic()))
            if child.exitcode is None and child.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)  # joblib's have no kill()


#: The event loop's handler for each of `SIGNALS`.
_listening: dict[int, Any] = {}
#: In the thread that forks: the signals that were blocked before.
_mask = threading.local()


def keep_signals_from_forks() -> None:
    """Give processes that handlers fork the default signal handling instead of the loop's."""
    if not _listening:
        os.register_at_fork(  # cannot be undone, so once only
            before=_block, after_in_parent=_unblock, after_in_child=_forget_signals
        )
    _listening.update((number, signal.getsignal(number)) for number in SIGNALS)


def _block() -> None:
    """Block signals: a fork that gets one while it has our handlers would stop the server."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _forget_signals() -> None:
    """Restore the default handling in a fork.

    A fork inherits our handlers and the wake-up file of our event loop, so its SIGTERM would stop
    the server. The handlers are compared, not that file, which asyncio resets first from Python
    3.12 on. Other handlers are left alone: they are those of a program whose server has ended.
    """
    for number, handler in _listening.items():
        if signal.getsignal(number) == handler:
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)
    _unblock()
