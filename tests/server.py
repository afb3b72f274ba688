"""Starts the real server as a process on free ports, for tests that speak to it."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

import httpx

from .forks import PATIENCE, ROOT, Fork, servers

STARTED = "Model server started."
#: What asyncio, gRPC, uvicorn and threads log of errors that nobody has handled.
UNHANDLED = re.compile(r"Unexpected \[|never retrieved|Exception in |Exception ignored")
NAMES = ("http", "inference", "metrics", "grpc", "native_grpc", "management_grpc")

#: Not the one that hypothesis sets to the same beginning in each process.
_chance = random.SystemRandom()
#: The last that were found free: one test may ask twice before anybody listens.
_recent: deque[int] = deque(maxlen=100)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; held together so that all differ.

    None of those that the system gives to clients, of which other tests have many, nor of those
    that another process that runs tests may have found free a moment ago.
    """
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            port = _chance.randrange(10_000 + own, 32_000, processes)
            if port in _recent:
                continue
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
    _recent.extend(ports)
    return ports


def ports_of_a_server() -> dict[str, int]:
    """A free port for each of `NAMES`."""
    return dict(zip(NAMES, free_ports(len(NAMES)), strict=True))


@contextmanager
def taken_port(port: int = 0) -> Iterator[int]:
    """A port that another program listens on in the block; 0 lets the system choose it."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        yield other.getsockname()[1]


class Server:
    """A server process; a context manager that stops it.

    Args:
        model_dir: what it serves.
        args: further options.
        env: further environment variables.
        wait: until it says that it has started.
        fresh: as a Python of its own, not forked from one that has done the imports: for what is
            said of imports, of variables that they read, and of memory.
        command: to start instead of ``python -m kserve_torch``.
        cwd: its working directory.
        ports: of a command that says itself where http and grpc are; by default free ones.
    """

    def __init__(
        self,
        model_dir: Path | None,
        *args: str,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
        fresh: bool = False,
        command: Sequence[str] | None = None,
        cwd: Path | None = None,
        ports: dict[str, int] | None = None,
    ) -> None:
        self.ports = ports or ports_of_a_server()
        self.lines: list[str] = []
        self._started = threading.Event()
        environment = {**os.environ, **self._addresses(), "PYTHONPATH": str(ROOT), **(env or {})}
        self.process: Fork | subprocess.Popen[str]
        options = [*([] if command else self._options(model_dir)), *args]
        if fresh or command:
            self.process = subprocess.Popen(
                [*(command or (sys.executable, "-m", "kserve_torch")), *options],
                env=environment,
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        else:
            here = cwd or Path.cwd()
            self.process = servers().start_module("kserve_torch", options, environment, here)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.wait_started()

    def _options(self, model_dir: Path | None) -> list[str]:
        return [
            *([] if model_dir is None else ["--model_dir", str(model_dir)]),
            *("--http_port", str(self.ports["http"]), "--grpc_port", str(self.ports["grpc"])),
            *("--drain_seconds", "0"),
        ]

    def _addresses(self) -> dict[str, str]:
        here = "http://127.0.0.1:"
        return {
            "TS_INFERENCE_ADDRESS": here + str(self.ports["inference"]),
            "TS_MANAGEMENT_ADDRESS": here + str(self.ports["inference"]),
            "TS_METRICS_ADDRESS": here + str(self.ports["metrics"]),
            "TS_GRPC_INFERENCE_PORT": str(self.ports["native_grpc"]),
            "TS_GRPC_MANAGEMENT_PORT": str(self.ports["management_grpc"]),
        }

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if STARTED in line:
                self._started.set()
        self._started.set()

    def wait_started(self, timeout: float = PATIENCE) -> None:
        """Wait for the line that says so; fails with the log if the process ends before."""
        if not self._started.wait(timeout) or not any(STARTED in line for line in self.lines):
            self.kill()
            raise AssertionError(f"the server did not start:\n{self.log}")

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return "\n".join(self.lines)

    @property
    def url(self) -> str:
        """Of the KServe port."""
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def inference_url(self) -> str:
        """Of TorchServe's inference and management port."""
        return f"http://127.0.0.1:{self.ports['inference']}"

    def client(self, base_url: str | None = None) -> httpx.Client:
        """An HTTP client for the KServe port."""
        return httpx.Client(base_url=base_url or self.url, timeout=60, trust_env=False)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 40) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.wait(timeout)

    def wait(self, timeout: float = 40) -> int:
        """Wait for the end; returns the exit code."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop:\n{self.log}") from None
        self._close()
        assert UNHANDLED.search(self.log) is None, self.log
        return code

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.stop() if kind is None else self.kill()
