"""``torch.fx`` traces on one thread only: it replaces ``nn.Module.__call__`` for the process.

Without this, models that other threads call meanwhile fail with "module is not installed as a
submodule". torchvision's ``create_feature_extractor`` and FX quantization trace.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch.fx._symbolic_trace as symbolic

_lock = threading.RLock()


def install() -> None:
    """Replace torch's own tracing."""
    symbolic._Patcher.patch_method = _patch_method  # type: ignore[assignment,method-assign]
    symbolic.Tracer.trace = _trace  # type: ignore[method-assign]


_torchs_patch_method = symbolic._Patcher.patch_method
_torchs_trace = symbolic.Tracer.trace


@functools.wraps(_torchs_patch_method)
def _patch_method(self: Any, cls: type, name: str, new: Any, deduplicate: bool = True) -> Any:
    """Let only the calling thread run ``new``; all others run what was there before."""
    tracing, before = threading.get_ident(), getattr(cls, name)

    @functools.wraps(new)
    def run(*args: Any, **named: Any) -> Any:
        return (new if threading.get_ident() == tracing else before)(*args, **named)

    return _torchs_patch_method(self, cls, name, run, deduplicate)


@functools.wraps(_torchs_trace)
def _trace(*args: Any, **named: Any) -> Any:
    with _lock:
        return _torchs_trace(*args, **named)
