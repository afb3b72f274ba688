"""``ts.metrics.process_memory_metric``: memory of processes, for handlers that report it."""

from __future__ import annotations

import logging
from typing import TextIO

import psutil

log = logging.getLogger(__name__)


def get_cpu_usage(pid: int | str) -> int:
    """Resident memory of a process in bytes; 0, with a line in the log, if it is unknown."""
    try:
        return int(psutil.Process(int(pid)).memory_info().rss)
    except (psutil.Error, ValueError) as error:
        log.error("memory of process %s is not known: %s", pid, error)
        return 0


def check_process_mem_usage(stdin: TextIO) -> None:
    """Log the resident memory of the processes in a line of ids with commas between them."""
    for pid in filter(None, stdin.readline().strip().split(",")):
        log.info("%s:%d", pid, get_cpu_usage(pid))
