import runpy
import sys

import pytest

from ..server import ROOT


@pytest.mark.parametrize("part", ["window: push", "app: v1, 1 at"])
def test_a_stage_is_measured(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", ["micro.py", part])
    runpy.run_module("benchmarks.micro", run_name="__main__", alter_sys=True)
    head, line = capsys.readouterr().out.splitlines()
    assert head.endswith("µs per request")
    assert line.startswith(part)
    assert float(line.split()[-1]) > 0
