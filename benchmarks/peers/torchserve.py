"""TorchServe behind KServe's v1 protocol.

Its KServe envelope cannot split the answers of a batch (every request of one fails), so batches
have one row, as everyone's have who serves v1 with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.peers.program import properties, task

if __name__ == "__main__":
    work = task()
    config = properties(work, 1, service_envelope="kserve", disable_token_authorization="true")
    logs = work.folder / "logs"
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "LOG_LOCATION": str(logs),
        "METRICS_LOCATION": str(logs),
        # Its front end starts the workers as `python`.
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    os.execve(
        programs / "torchserve",
        ["torchserve", "--start", "--foreground", "--ncs", "--ts-config", str(config)],
        environment,
    )
