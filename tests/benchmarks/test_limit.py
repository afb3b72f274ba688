"""A CPU limit: what is written where, and that a server sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.limit import ROOT, limited


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (
            ["cpu/cpu.shares"],
            {"cpu/{}/cpu.cfs_period_us": "100000", "cpu/{}/cpu.cfs_quota_us": "150000"},
        ),
        (
            ["cgroup.controllers"],
            {"{}/cpu.max": "150000 100000", "cgroup.subtree_control": "+cpu"},
        ),
    ],
)
def test_either_version_of_control_groups(
    tmp_path: Path, there: list[str], expected: dict[str, str]
) -> None:
    for name in there:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with limited(1.5, tmp_path) as prefix:
        group, mounted = map(Path, prefix[-2:])
        assert group.parent == mounted
        for name, text in expected.items():
            assert (tmp_path / name.format(group.name)).read_text() == text


def test_without_control_groups(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cpu"), limited(1, tmp_path):
        pass


def _may_limit() -> bool:
    version_1 = ROOT / "cpu"
    return os.geteuid() == 0 and os.access(version_1 if version_1.exists() else ROOT, os.W_OK)


@pytest.mark.skipif(not _may_limit(), reason="needs root, and control groups that may be changed")
def test_a_server_sees_its_limit() -> None:
    with limited(0.5) as prefix:
        (group,) = (Path(part) for part in prefix if part.endswith("kserve_torch-benchmarks"))
        seen = "from kserve_torch.runtime.machine import cpu_limit; print(cpu_limit())"
        command = [*prefix, sys.executable, "-c", seen]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["0.5"]
        assert group.exists()
    assert not group.exists()
