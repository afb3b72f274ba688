"""`cores` reads what a container may use; `keep_freed_memory` saves the page faults."""

import os
from pathlib import Path

import pytest

from kserve_torch.runtime.machine import cores

from ..makers import write
from ..processes import Interpreter

ALL = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, ALL),
        ({"cpu.max": "max 100000"}, ALL),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "100000000 100000"}, ALL),
        ({"cpu.max": "nonsense"}, ALL),
        ({"cpu.max": ""}, ALL),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, ALL),
        ({"cpu/cpu.cfs_quota_us": "20000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "20000"}, ALL),
        ({"cpu/cpu.cfs_quota_us": "20000", "cpu/cpu.cfs_period_us": "0"}, ALL),
    ],
)
def test_cores(tmp_path: Path, files: dict[str, str], count: int) -> None:
    assert cores(write(tmp_path / "cgroup", files)) == count


def test_a_fraction_of_a_core_more_is_rounded_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert cores(write(tmp_path / "cgroup", {"cpu.max": "150000 100000"})) == 2


#: Prints the page faults of 20 batches on a thread.
FAULTS = """
import resource, threading, torch
from kserve_torch.runtime.machine import keep_freed_memory
{}
net = torch.nn.Sequential(torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3))
def work():
    def batch():
        with torch.inference_mode():
            net(torch.ones(16, 1, 28, 28))
    for _ in range(5):
        batch()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(20):
        batch()
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_a_threads_memory_is_kept_for_its_next_batch(forks: Interpreter) -> None:
    kept, given_back = forks.run(FAULTS.format("keep_freed_memory()")), forks.run(FAULTS.format(""))
    assert int(kept) * 10 < int(given_back)
