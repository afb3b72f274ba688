"""Processes that handlers start: how they end, and that our signals are not theirs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

#: What ends the server.
SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Seconds that children have to end when they are told to.
CHILD_SECONDS = 1.0


class Children:
    """The processes that are started from now on; those of the program that serves go on."""

    def __init__(self) -> None:
        self._others = multiprocessing.active_children()

    def end(self) -> None:
        """End them: they would live on, and keep the ports."""
        children = [one for one in multiprocessing.active_children() if one not in self._others]
        for child in children:
            child.terminate()
        ends = time.monotonic() + CHILD_SECONDS
        for child in children:
            child.join(max(0.0, ends - time.monotonic()))
            if child.exitcode is None:
                child.kill()


#: How the loop that listens takes each of `SIGNALS`.
_listening: dict[int, Any] = {}
#: Of the thread that forks: the signals that were blocked before.
_mask = threading.local()


def keep_signals_from_forks() -> None:
    """Let signals end processes that handlers fork, while the loop listens to them."""
    if not _listening:
        os.register_at_fork(  # nothing takes it back
            before=_block, after_in_parent=_unblock, after_in_child=_forget_signals
        )
    _listening.update((number, signal.getsignal(number)) for number in SIGNALS)


def _block() -> None:
    """A fork that is told to end before it has forgotten our handlers would have us end."""
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _forget_signals() -> None:
    """A fork has our signal handlers and the file that tells our loop: its SIGTERM would be ours.

    Whether that file is still set says nothing: from Python 3.12 on asyncio forgets it first. What
    a program whose server has ended does with signals is its own.
    """
    for number, handler in _listening.items():
        if signal.getsignal(number) == handler:
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)
    _unblock()
