"""What the machine gives this process: cores, open files, and memory that it need not ask for."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
#: glibc's names for what `keep_freed_memory` sets (malloc.h), and the values: a thread's heap ends
#: at 64 MiB, and blocks above half of that always come from the system.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_HEAP_BYTES = 64 * 2**20


def cores(cgroups: Path = CGROUPS) -> int:
    """How many cores this process may keep busy, at least 1.

    A container sees all cores of its node and is stopped when it has used up its share of time, so
    its CPU limit counts, rounded up.

    Args:
        cgroups: where the control groups are mounted.
    """
    seen = len(os.sched_getaffinity(0))
    limits = [math.ceil(limit) for limit in _limits(cgroups)]
    return max(1, min([seen, *limits]))


def _limits(cgroups: Path) -> Iterable[float]:
    """The CPU limit in cores, of either version of control groups."""
    first = [cgroups / "cpu" / "cpu.cfs_quota_us", cgroups / "cpu" / "cpu.cfs_period_us"]
    second = [cgroups / "cpu.max"]
    for files in (second, first):
        try:
            quota, period = map(int, " ".join(file.read_text() for file in files).split())
        except (OSError, ValueError):  # not mounted, or "max": no limit
            continue
        if quota > 0 and period > 0:
            yield quota / period


def allow_open_files() -> None:
    """Lift this process's limit on open files to what the system lets it have, as the JVM does.

    The usual 1024 are fewer than ``max_connections``: the kernel would reset what comes beyond,
    probes included.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # macOS calls it unlimited, and means less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def keep_freed_memory() -> None:
    """Let threads keep the memory of one batch for the next one.

    glibc gives the top of a thread's heap back after each batch of activations, and the next batch
    pays for every page again: a third of the time of a small model.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_TRIM_THRESHOLD, _HEAP_BYTES)
    libc.mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES // 2)
