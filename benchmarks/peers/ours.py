"""kserve_torch, as its users start it."""

from __future__ import annotations

import os
import sys

from benchmarks.peers import BATCH_ROWS
from benchmarks.peers.program import free_ports, properties, task

if __name__ == "__main__":
    work = task()
    config = properties(work, BATCH_ROWS)
    http, grpc = free_ports(2)
    options = ["--ts-config", str(config), "--http_port", str(http), "--grpc_port", str(grpc)]
    os.execv(
        sys.executable,
        [sys.executable, "-m", "kserve_torch", *options, "--drain_seconds", "0"],
    )
