"""``ts.metrics.system_metrics``: the machine's metrics, for handlers that report them.

The server measures its own (CONTRACT X2) and does not use this.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import psutil
import torch

from kserve_torch.ts.metrics.dimension import Dimension
from kserve_torch.ts.metrics.metric import Metric

log = logging.getLogger(__name__)

_MEGABYTE, _GIGABYTE = 1 << 20, 1 << 30

#: What the functions below have measured so far.
system_metrics: list[Metric] = []
dimension = [Dimension("Level", "Host")]


def cpu_utilization() -> None:
    """Percent of all processors in use since the last call."""
    _add("CPUUtilization", psutil.cpu_percent(), "percent")


def memory_used() -> None:
    """Memory in use, in MB."""
    _add("MemoryUsed", psutil.virtual_memory().used / _MEGABYTE, "MB")


def memory_available() -> None:
    """Memory available without swapping, in MB."""
    _add("MemoryAvailable", psutil.virtual_memory().available / _MEGABYTE, "MB")


def memory_utilization() -> None:
    """Percent of memory in use."""
    _add("MemoryUtilization", psutil.virtual_memory().percent, "percent")


def disk_used() -> None:
    """The root disk's space in use, in GB."""
    _add("DiskUsage", psutil.disk_usage("/").used / _GIGABYTE, "GB")


def disk_utilization() -> None:
    """Percent of the root disk in use."""
    _add("DiskUtilization", psutil.disk_usage("/").percent, "percent")


def disk_available() -> None:
    """The root disk's free space, in GB."""
    _add("DiskAvailable", psutil.disk_usage("/").free / _GIGABYTE, "GB")


def gpu_utilization(num_of_gpu: int) -> None:
    """Memory of the first ``num_of_gpu`` GPUs, and their load where torch can tell it."""
    for index in range(num_of_gpu):
        labels = Dimension("Level", "Host"), Dimension("device_id", index)
        free, total = torch.cuda.mem_get_info(index)
        _add("GPUMemoryUtilization", 100 * (total - free) / total, "percent", *labels)
        _add("GPUMemoryUsed", (total - free) / _MEGABYTE, "MB", *labels)
        if find_spec("pynvml"):  # what torch asks for it
            _add("GPUUtilization", torch.cuda.utilization(index), "percent", *labels)


def collect_all(mod: ModuleType | Any, num_of_gpu: int) -> None:
    """Measure everything and write it to the log.

    Args:
        mod: this module, as TorchServe's callers pass it.
        num_of_gpu: how many GPUs to look at.
    """
    for measure in (
        mod.cpu_utilization,
        mod.memory_used,
        mod.memory_available,
        mod.memory_utilization,
        mod.disk_used,
        mod.disk_utilization,
        mod.disk_available,
    ):
        measure()
    mod.gpu_utilization(num_of_gpu)
    for metric in system_metrics:
        log.info("%s", metric)


def _add(name: str, value: float, unit: str, *labels: Dimension) -> None:
    system_metrics.append(Metric(name, value, unit, labels or dimension))
