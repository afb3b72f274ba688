"""mosec with dynamic batching, else with its default settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import mosec

from benchmarks.handling import only_handler
from benchmarks.peers import BATCH_DELAY_MS, BATCH_ROWS, PEERS, V1_PREDICT
from benchmarks.peers.program import task

STORE = "BENCHMARK_STORE"


class HandlerWorker(mosec.Worker):
    """Calls the handler with the rows of several requests."""

    def __init__(self) -> None:
        super().__init__()
        self._handler = only_handler(Path(os.environ[STORE]))

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer a batch of v1 requests of one row."""
        results = self._handler([body["instances"][0] for body in data])
        return [{"predictions": [result]} for result in results]


if __name__ == "__main__":
    work = task()
    os.environ[STORE] = str(work.store)
    (archive,) = work.store.glob("*.mar")
    # mosec reads the command line itself.
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(work.port)]
    server = mosec.Server()
    server.register_runtime(
        {
            PEERS["mosec"].routes[V1_PREDICT].format(model=archive.stem): [
                mosec.Runtime(
                    HandlerWorker, max_batch_size=BATCH_ROWS, max_wait_time=BATCH_DELAY_MS
                )
            ]
        }
    )
    server.run()
