"""What the peers' programs share: command line, ports, and a configuration in TorchServe's way."""

from __future__ import annotations

import argparse
import json
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import BATCH_DELAY_MS


@dataclass(frozen=True, slots=True)
class Task:
    """What a program is told to do.

    Attributes:
        store: the folder with the archives to serve.
        port: where to serve, on 127.0.0.1.
        folder: for files of its own.
    """

    store: Path
    port: int
    folder: Path


def task() -> Task:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    return Task(options.store, options.port, options.folder)


def free_ports(count: int) -> list[int]:
    """Free ports; all are bound at the same time, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def properties(work: Task, batch_rows: int, **more: str) -> Path:
    """Write a ``config.properties`` for every archive of the store, one worker each.

    Args:
        work: its store, port and folder are used.
        batch_rows: TorchServe's ``batchSize``.
        more: further keys.
    """
    metrics, inference, management = free_ports(3)
    archives = sorted(work.store.glob("*.mar"))
    keys = {
        "inference_address": f"http://127.0.0.1:{work.port}",
        "management_address": f"http://127.0.0.1:{work.port}",
        "metrics_address": f"http://127.0.0.1:{metrics}",
        "grpc_inference_port": str(inference),
        "grpc_management_port": str(management),
        "model_store": str(work.store),
        "load_models": ",".join(path.name for path in archives),
        "models": json.dumps({path.stem: _model(path, batch_rows) for path in archives}),
        **more,
    }
    path = work.folder / "config.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return path


def _model(archive: Path, batch_rows: int) -> dict[str, Any]:
    return {
        "1.0": {
            "defaultVersion": True,
            "marName": archive.name,
            "minWorkers": 1,
            "maxWorkers": 1,
            "batchSize": batch_rows,
            "maxBatchDelay": BATCH_DELAY_MS,
            "responseTimeout": 120,
        }
    }
