"""Runs the scripts of this repository."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from pathlib import Path

import pytest


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
