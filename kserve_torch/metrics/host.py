"""The machine and its GPUs, measured at each scrape."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import psutil

from kserve_torch.metrics.family import Family, gauge
from kserve_torch.metrics.torchserve import ts_gauge

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30


psutil.cpu_percent()  # the next call measures from here


def host_families(hostname: str) -> Iterable[Family[Any]]:
    """TorchServe's system metrics (CONTRACT X2, X3): processors, memory and disk."""
    memory, disk = psutil.virtual_memory(), psutil.disk_usage("/")
    numbers = (
        ("CPUUtilization", "Percent", psutil.cpu_percent()),
        ("MemoryUsed", "Megabytes", memory.used / MEGABYTE),
        ("MemoryAvailable", "Megabytes", memory.available / MEGABYTE),
        ("MemoryUtilization", "Percent", memory.percent),
        ("DiskUsage", "Gigabytes", disk.used / GIGABYTE),
        ("DiskUtilization", "Percent", disk.percent),
        ("DiskAvailable", "Gigabytes", disk.free / GIGABYTE),
    )
    for name, unit, number in numbers:
        family = ts_gauge(name, unit, ("Level", "Hostname"))
        family.series("Host", hostname).set(number)
        yield family


def gpu_families(hostname: str) -> Iterable[Family[Any]]:
    """Likewise, memory and load of each GPU in use, by other processes too."""
    labels = ("Level", "DeviceId", "Hostname")
    utilization = ts_gauge("GPUMemoryUtilization", "Percent", labels)
    used = ts_gauge("GPUMemoryUsed", "Megabytes", labels)
    busy = ts_gauge("GPUUtilization", "Percent", labels)
    cuda = _cuda()
    devices = _used_devices(cuda)
    for index in devices:
        free, total = cuda.mem_get_info(index)
        place = ("Host", str(index), hostname)
        utilization.series(*place).set(100 * (total - free) / total)
        used.series(*place).set((total - free) / MEGABYTE)
    yield from (utilization, used)
    if find_spec("pynvml"):  # what torch asks for the load of a GPU, which a part of one lacks
        for index in devices:
            busy.series("Host", str(index), hostname).set(cuda.utilization(index))
    yield busy


def device_families() -> Iterable[Family[Any]]:
    """This process's memory on each GPU: in tensors, and what torch's allocator has reserved."""
    allocated = gauge("cuda_memory_allocated_bytes", "GPU memory in tensors", ("device",))
    reserved = gauge(
        "cuda_memory_reserved_bytes", "GPU memory that the allocator holds", ("device",)
    )
    cuda = _cuda()
    for index in _used_devices(cuda):
        allocated.series(str(index)).set(cuda.memory_allocated(index))
        reserved.series(str(index)).set(cuda.memory_reserved(index))
    return allocated, reserved


def _cuda() -> Any:
    """``torch.cuda`` if it is in use; a scrape must not import torch or initialise a GPU."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _used_devices(cuda: Any) -> list[int]:
    """GPUs on which this process holds memory: a query of others would create a context there."""
    if cuda is None:
        return []
    return [index for index in range(cuda.device_count()) if cuda.memory_reserved(index)]
