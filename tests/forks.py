"""Processes for tests, without what most of their time would go to: importing torch each time.

One process has done the imports; it forks one that runs what a test wants.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Seconds. pytest gives up later, and could not end the process.
PATIENCE = 100


class Fork:
    """A process that was forked; what tests use of `subprocess.Popen`.

    Args:
        output: what it prints comes out here.
        events: its number comes out here, a line, and its exit code when it has ended.
    """

    def __init__(self, output: int, events: int) -> None:
        self.stdout = os.fdopen(output)
        self._events = os.fdopen(events)
        self.pid = int(self._events.readline())
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, None as long as it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit code."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._events], [], [], timeout)[0]:
            with self._events:
                self._code = int(self._events.read())
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """A process that has imported a module and nothing else, and forks; it ends with `close`."""

    def __init__(self, module: str) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                # Warnings of forks beside other threads, and threads that nobody needs.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def close(self) -> None:
        self._requests.close()
        self._process.wait()

    def start(self, code: str) -> Fork:
        """Run ``code`` in a process of its own."""
        output, printed = os.pipe()
        events, told = os.pipe()
        socket.send_fds(self._requests, [json.dumps(code).encode() + b"\n"], [printed, told])
        os.close(printed)
        os.close(told)
        return Fork(output, events)

    def run(self, code: str) -> str:
        """What a process of its own prints that runs ``code``, which must not raise."""
        process = self.start(f"import signal\nsignal.alarm({PATIENCE})\n{code}")
        with process.stdout:
            printed = process.stdout.read()
        status = process.wait()
        assert status == 0, f"exit code {status}: {printed}"
        return printed

    def run_script(self, script: Path, *arguments: object) -> str:
        """What ``python SCRIPT`` prints, which must succeed; torch has one intra-op thread."""
        return self.run(
            "import runpy, sys, torch\n"
            "torch.set_num_threads(1)\n"
            f"sys.argv, sys.path[0] = {[*map(str, (script, *arguments))]}, {str(script.parent)!r}\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        )

    def start_module(
        self, module: str, args: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> Fork:
        """Run ``python -m MODULE``, of which the imports are done."""
        return self.start(
            "import os, runpy, sys\n"
            f"os.environ.clear()\nos.environ.update({dict(env)})\n"
            f"os.chdir({str(cwd)!r})\nsys.path[0] = os.getcwd()\n"
            f"sys.argv[1:] = {list(args)}\n"
            f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)\n"
        )


@functools.cache
def servers() -> Forks:
    """Forks that have imported what a server imports before it reads its settings."""
    forks = Forks("kserve_torch.server")
    atexit.register(forks.close)
    return forks


def _fork_for_each_request(requests: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        text, ends, *_ = socket.recv_fds(requests, 2**20, 2)
        if not text:
            return
        while not text.endswith(b"\n"):
            text += requests.recv(2**20)
        output, events = ends
        if not os.fork():
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run(json.loads(text), output, events)
        os.close(output)
        os.close(events)


def _run(code: str, output: int, events: int) -> None:
    """Fork what runs ``code``, tell its number and its end, and end."""
    if pid := os.fork():
        os.close(output)
        os.write(events, b"%d\n" % pid)
        os.write(events, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(events)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    status = 1
    try:
        exec(code, {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    importlib.import_module(sys.argv[1])
    _fork_for_each_request(socket.socket(fileno=int(sys.argv[2])))
