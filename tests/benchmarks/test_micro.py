import pytest

from ..processes import run_script
from ..server import ROOT


@pytest.mark.parametrize("part", ["window: push", "app: v1, 1 at"])
def test_a_stage_is_measured(part: str) -> None:
    done = run_script(ROOT / "benchmarks" / "micro.py", part)
    assert done.returncode == 0
    head, line = done.stdout.splitlines()
    assert head.endswith("µs per request")
    assert line.startswith(part)
    assert float(line.split()[-1]) > 0
