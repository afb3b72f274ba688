"""The process's share of the machine: cores, spinning threads, open files, freed memory."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Where the control groups are mounted.
CGROUPS = Path("/sys/fs/cgroup")
#: Parameters of glibc's mallopt (its malloc.h), which `keep_freed_memory` sets.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: A thread's heap has at most so many bytes. Blocks larger than half of it are not made in it, but
#: always come from the system.
_HEAP_BYTES = 64 * 2**20
#: Freeing so many bytes has glibc look at the top of a heap; it takes more than 64 KiB at once.
_LARGE_BYTES = 2**17
#: Whether `keep_freed_memory` was called.
_keeps = False
#: Variables that say how many threads libraries start, and how many processes torch's compiler.
_COUNTS = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
#: Variables that say how long libgomp's threads spin while they wait (GCC's libgomp manual, 3).
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
#: For how many rounds they spin here: 0.15 ms instead of 8, enough from one operator to the next.
_ROUNDS = "5000"


def cores() -> int:
    """How many cores this process may keep busy, at least 1.

    A container sees all cores of its node, and is throttled when it has used up its quota of CPU
    time, so its CPU limit counts, rounded up.
    """
    limit = cpu_limit()
    return _seen() if limit is None else math.ceil(limit)


def cpu_limit() -> float | None:
    """The container's CPU limit in cores; None unless it is below the cores that it sees."""
    limit = min(_limits(), default=math.inf)
    return limit if limit < _seen() else None


def _seen() -> int:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def _limits() -> Iterable[float]:
    """The CPU limit in cores, by control groups of version 2 or 1."""
    first = [CGROUPS / "cpu" / "cpu.cfs_quota_us", CGROUPS / "cpu" / "cpu.cfs_period_us"]
    second = [CGROUPS / "cpu.max"]
    for files in (second, first):
        try:
            quota, period = map(int, " ".join(file.read_text() for file in files).split())
        except (OSError, ValueError):  # not mounted, or "max": no limit
            continue
        if quota > 0 and period > 0:
            yield quota / period


def set_thread_variables() -> None:
    """Tell torch, NumPy and others how many threads to start, and how long these may spin.

    Call it before those are imported. Variables that are set already stay as they are.

    - ``GOMP_SPINCOUNT``: a waiting thread of libgomp that spins holds the core which another one,
      or the event loop, needs. With two more programs on two cores, this raises the throughput of
      MNIST 1.1 to 2.6 times; on idle ones, it lowers the p99 latency (docs/performance.md).

    Under a CPU limit, since libraries count the node's cores, and what they use beyond the limit
    has the whole container throttled:

    - ``OMP_NUM_THREADS``: the limit, rounded up. OpenBLAS and OpenMP start a thread per core.
    - ``TORCHINDUCTOR_COMPILE_THREADS``: the same. torch's compiler starts up to 32 of them, each
      two processes; 16 need 1.5 GB.
    """
    if not any(name in os.environ for name in _WAITING):
        os.environ[_WAITING[0]] = _ROUNDS
    limit = cpu_limit()
    if limit is not None:
        for name in _COUNTS:
            os.environ.setdefault(name, str(math.ceil(limit)))


def allow_open_files() -> None:
    """Raise this process's soft limit on open files to the hard one, as the JVM does.

    The usual 1024 is less than ``max_connections``: the kernel would reset connections beyond it,
    those of probes too.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # macOS says unlimited, but means less
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def keep_freed_memory() -> None:
    """Make threads keep the memory of one batch for the next one.

    By default glibc returns the top of a thread's heap to the system after each batch, and the next
    batch faults every page in again: a third of the time of a small model.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    global _keeps
    _keeps = True
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_TRIM_THRESHOLD, _HEAP_BYTES)
    libc.mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES // 2)


def give_back_memory() -> None:
    """Free what is in cycles of references, as handlers often are, and give it back."""
    with _shrinking_heaps():
        gc.collect()
    give_back_freed_memory()


def give_back_freed_memory() -> None:
    """Give freed memory back to the system, except the tops of other threads' heaps.

    A heap keeps what was freed between blocks in use, and with `keep_freed_memory` also up to 64
    MiB above the last of them, its top.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)  # leaves the tops
    with _shrinking_heaps():
        bytearray(_LARGE_BYTES)


@contextmanager
def _shrinking_heaps() -> Iterator[None]:
    """Within it, heaps in which something large is freed give their top back.

    Otherwise `keep_freed_memory` keeps them from that.
    """
    if not _keeps:
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_TRIM_THRESHOLD, 0)
    try:
        yield
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, _HEAP_BYTES)
