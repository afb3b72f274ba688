"""Prepares the process and its event loop, for serving and for ``--check``."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import uvloop

from kserve_torch import logs
from kserve_torch.garbage import Throttle
from kserve_torch.namespace.workdir import follow_models
from kserve_torch.runtime import output
from kserve_torch.runtime.compiler import defer_compiler
from kserve_torch.runtime.machine import allow_open_files, keep_freed_memory
from kserve_torch.settings import Settings

#: Python's switch interval: how long the event loop waits for the interpreter's lock each time that
#: a handler computes in Python. With the default, 0.005, probes time out.
SWITCH_SECONDS = 0.001


def run_until_done(settings: Settings, work: Callable[[], Coroutine[None, None, int]]) -> int:
    """Set up logging, output, memory and the event loop, and run ``work`` on it.

    Raises:
        SettingError: a setting cannot be met.
    """
    logs.configure(settings)
    output.share()
    # torch's own objects live to the end; a garbage collection that includes them takes 0.2 s.
    gc.freeze()
    gc.callbacks.append(Throttle())
    sys.setswitchinterval(SWITCH_SECONDS)
    allow_open_files()
    keep_freed_memory()
    defer_compiler()
    follow_models()
    _name_sequence_headers(settings)
    factory = None if settings.event_loop == "asyncio" else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.get_loop().set_default_executor(_Unawaited())
        return runner.run(work())


class _Unawaited(ThreadPoolExecutor):
    """An executor that is not waited for at the end: a thread of it may wait for a hung handler."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def _name_sequence_headers(settings: Settings) -> None:
    """Put the configured names where handlers' Contexts read them, in the environment (T-41)."""
    for part in ("id", "start", "end"):
        name = getattr(settings, f"ts_header_key_sequence_{part}")
        os.environ[f"TS_REQUEST_SEQUENCE_{part.upper()}"] = name
