"""Programs for tests, without what most of their time would go to: importing torch each time."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .server import ROOT

#: Runs each line of its input, a JSON string of code, in a fork, and answers its exit code and
#: what it has printed.
_FORKING = """
import json, os, signal, sys, tempfile, traceback
import torch

for line in sys.stdin:
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if not pid:
            signal.alarm(50)  # pytest gives up later, and could not end this process
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            code = 1
            try:
                exec(json.loads(line), {"__name__": "__main__"})
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        print(json.dumps([code, output.read().decode()]), flush=True)
"""


class Interpreter:
    """A process that has imported torch and nothing else, and forks one for each piece of code."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str) -> str:
        """What a process of its own prints that runs ``code``, which must not raise."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        status, printed = json.loads(self._process.stdout.readline())
        assert status == 0, f"exit code {status}: {printed}"
        return str(printed)


@contextmanager
def interpreter() -> Iterator[Interpreter]:
    """Start one; it ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        yield Interpreter(process)


def run_script(
    script: Path, *arguments: object, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script of this repository as ``python SCRIPT`` does, in this process.

    Its own modules are forgotten afterwards; an error that it does not expect is raised.
    """
    output, errors, before = io.StringIO(), io.StringIO(), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), *map(str, arguments)])
        patch.setattr(sys, "path", [str(script.parent), *sys.path])
        patch.chdir(cwd or Path.cwd())
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                runpy.run_path(str(script), run_name="__main__")
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
    for name in sys.modules.keys() - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).parent in script.parents:
            del sys.modules[name]
    return subprocess.CompletedProcess(script, code, output.getvalue(), errors.getvalue())
