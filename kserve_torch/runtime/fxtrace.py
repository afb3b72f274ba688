"""torch traces models, and reads exported ones, one after the other: its state is the process's.

``torch.fx`` replaces ``nn.Module.__call__`` while it traces. Models that other threads call then
would fail with "module is not installed as a submodule". They would fail for ever if a model is
compiled at that time: compiling undoes the replacement for a while, and makes it again though
tracing may have ended. torchvision's ``create_feature_extractor`` and FX quantization trace.

``torch.export`` and ``torch.jit.trace`` keep what they are working on in global variables. Of two
models with a ``.pt2`` that load at once, one would fail: "_CURRENT_DESERIALIZER is already set".
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx._symbolic_trace as symbolic

#: Seconds after which compiling does not wait any longer.
PATIENCE = 10.0

_lock = threading.RLock()
#: A program may take long to read; it is in nobody's way while models are traced or compiled.
_reading = threading.RLock()


def install() -> None:
    """Replace torch's own tracing."""
    symbolic._Patcher.patch_method = _patch_method  # type: ignore[assignment,method-assign]
    symbolic._maybe_revert_all_patches = _maybe_revert_all_patches
    torch._ops._mode_stack_state_for_pre_dispatch = _modes
    for owner, name, function in _in_turn:
        setattr(owner, name, function)


@contextmanager
def _alone(lock: Any) -> Iterator[None]:
    with lock:
        yield


_ALONE: tuple[tuple[Any, str, Any], ...] = (
    (symbolic.Tracer, "trace", _lock),
    (torch.export, "export", _lock),
    (torch.jit, "trace", _lock),
    (torch.jit, "trace_module", _lock),
    (torch.export, "load", _reading),
)
_in_turn = [(owner, name, _alone(lock)(getattr(owner, name))) for owner, name, lock in _ALONE]

_torchs_patch_method = symbolic._Patcher.patch_method


@functools.wraps(_torchs_patch_method)
def _patch_method(self: Any, cls: type, name: str, new: Any, deduplicate: bool = True) -> Any:
    """Let only the calling thread run ``new``; all others run what was there before."""
    tracing, before = threading.get_ident(), getattr(cls, name)

    @functools.wraps(new)
    def run(*args: Any, **named: Any) -> Any:
        return (new if threading.get_ident() == tracing else before)(*args, **named)

    return _torchs_patch_method(self, cls, name, run, deduplicate)


_torchs_revert = symbolic._maybe_revert_all_patches


@contextmanager
def _maybe_revert_all_patches() -> Iterator[None]:
    """Within it torch compiles, without what tracing has replaced: so the two take turns.

    A thread that has waited for `PATIENCE` seconds goes ahead: the one that traces may be waiting
    for the lock with which torch compiles, which this one holds.
    """
    if not _lock.acquire(timeout=PATIENCE):
        yield
        return
    try:
        with _torchs_revert():
            yield
    finally:
        _lock.release()


class _Modes(torch._ops._ModeStackStateForPreDispatch, threading.local):
    """What ``torch.export`` and ``make_fx`` do with operators: each thread's own."""


_modes = _Modes()  # type: ignore[no-untyped-call]
