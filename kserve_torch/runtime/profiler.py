"""Profiles of a handler's steps, while ``ENABLE_TORCH_PROFILER`` is set (CONTRACT E5).

A trace per call is written under ``/tmp/pytorch_profiler/<model>``, as TensorBoard's plugin and
Perfetto read it, unless the handler's ``profiler_args`` say otherwise; the table of the slowest
operations goes to the log.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, tensorboard_trace_handler

log = logging.getLogger(__name__)

SWITCH = "ENABLE_TORCH_PROFILER"
TRACES = Path("/tmp/pytorch_profiler")  # where TorchServe's documents say to look
_ROWS = 10
#: torch has one profiler per process; two at once crash it. Reentrant, so that a nested profile
#: gets torch's own error.
_turn = threading.RLock()


def enabled() -> bool:
    """Whether calls are profiled: any value but empty, ``false`` and ``0`` (CONTRACT T-39)."""
    return os.environ.get(SWITCH, "").lower() not in ("", "0", "false")


@contextmanager
def profile(model_name: str, profiler_args: Mapping[str, Any]) -> Iterator[torch.profiler.profile]:
    """Profile the block, write its trace and log its table; profiles on other threads wait.

    Args:
        model_name: names the folder of the traces.
        profiler_args: arguments for `torch.profiler.profile`; they win over the defaults.
    """
    with _turn, torch.profiler.profile(**_arguments(model_name, profiler_args)) as running:
        yield running
    log.info(
        "%s\n%s",
        model_name,
        running.key_averages().table(sort_by="cpu_time_total", row_limit=_ROWS),
    )


def _arguments(model_name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    usual = {"activities": [ProfilerActivity.CPU, *gpu], "record_shapes": True}
    write_trace = tensorboard_trace_handler(str(TRACES / Path(model_name).name))
    return {"on_trace_ready": write_trace, **(given or usual)}
