import subprocess
import sys

import pytest

from ..server import ROOT


@pytest.mark.parametrize("part", ["window: push", "app: v1, 1 at"])
def test_a_stage_is_measured(part: str) -> None:
    command = [sys.executable, "-m", "benchmarks.micro", part]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    head, line = run.stdout.splitlines()
    assert head.endswith("µs per request")
    assert line.startswith(part)
    assert float(line.split()[-1]) > 0
