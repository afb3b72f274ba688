"""A peer's process: its start, requests, memory, CPU time and end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load import Stream, Traffic, drive
from benchmarks.peers import Peer
from benchmarks.peers.program import free_ports
from benchmarks.workloads import ROOT, Body, Workload

#: Seconds that a server may take until its first answer, for one answer, and to stop.
START_LIMIT, ANSWER_LIMIT, STOP_LIMIT = 180.0, 60.0, 15.0
#: Seconds between two tries whether a server answers yet.
LOOK_EVERY = 0.02


class ServerFailed(Exception):
    """A server does not start, or ended."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a process tree in bytes: RSS counts shared pages once per process, PSS once."""

    rss: int
    pss: int


class Server:
    """One running peer.

    Args:
        peer: which one.
        store: the archives that it serves.
        folder: for its files and its log.
        prefix: put before its command.

    Attributes:
        started: ``time.perf_counter()`` at its start.
    """

    def __init__(self, peer: Peer, store: Path, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.peer = peer
        (self.port,) = free_ports(1)
        self.log = folder / "log"
        command = [*prefix, str(peer.python), "-m", f"benchmarks.peers.{peer.name}"]
        command += ["--store", str(store), "--port", str(self.port), "--folder", str(folder)]
        self.started = time.perf_counter()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,  # MLServer and TorchServe write into theirs
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    # --- requests ---

    def path(self, workload: Workload, model: str | None = None) -> str:
        """Where a workload's requests go."""
        return self.peer.routes[workload.route].format(model=model or workload.store)

    def await_answer(self, path: str, body: Body) -> bytes:
        """Ask until there is an answer of status 200.

        Raises:
            ServerFailed: it ended, or `START_LIMIT` passed.
        """
        while time.perf_counter() < self.started + START_LIMIT:
            if self._process.poll() is not None:
                raise ServerFailed(f"ended with code {self._process.returncode}: {self._last()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, content = self.ask(path, body)
                if status == 200:
                    return content
            time.sleep(LOOK_EVERY)
        raise ServerFailed(f"no answer {START_LIMIT:g} s after its start: {self._last()}")

    def ask(self, path: str, body: Body) -> tuple[int, bytes]:
        """Ask once, on a connection of its own; gives status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_LIMIT)
        with contextlib.closing(connection):
            connection.request("POST", path, body.content, dict(body.headers))
            response = connection.getresponse()
            return response.status, response.read()

    def stream(self, workload: Workload, connections: int, rate: float | None = None) -> Stream:
        """A workload's requests as bytes, for `drive`."""
        path = self.path(workload)
        return Stream([_request(path, body) for body in workload.bodies], connections, rate)

    def drive(self, streams: Sequence[Stream], seconds: float) -> list[Traffic]:
        """Put a load on it."""
        return drive(self.port, streams, seconds)

    # --- what it costs ---

    def memory(self) -> Memory:
        """The memory of its process tree."""
        infos = [process.memory_full_info() for process in self._tree()]
        return Memory(sum(info.rss for info in infos), sum(info.pss for info in infos))

    def cpu_seconds(self) -> float:
        """CPU time that its process tree has used."""
        times = [process.cpu_times() for process in self._tree()]
        return float(sum(time.user + time.system for time in times))

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    # --- the end ---

    def stop(self) -> None:
        """Send SIGTERM; after `STOP_LIMIT`, kill what is left of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_LIMIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _last(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "it printed nothing"


@contextlib.contextmanager
def running(peer: Peer, store: Path, folder: Path, prefix: Sequence[str] = ()) -> Iterator[Server]:
    """A peer that runs as long as the context."""
    folder.mkdir(parents=True)
    server = Server(peer, store, folder, prefix)
    try:
        yield server
    finally:
        server.stop()


def _request(path: str, body: Body) -> bytes:
    headers = {"Host": "127.0.0.1", **body.headers, "Content-Length": str(len(body.content))}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body.content
