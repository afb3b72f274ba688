"""`cores` reads what a container may use, which waiting threads spare; freed memory is kept."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kserve_torch.runtime import machine
from kserve_torch.runtime.machine import cores, set_thread_variables

from ..forks import Forks
from ..makers import write

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
def test_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(machine, "CGROUPS", write(tmp_path / "cgroup", files))
    assert cores() == count


def test_a_fraction_of_a_core_more_is_rounded_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    limited = write(tmp_path / "cgroup", {"cpu.max": "150000 100000"})
    monkeypatch.setattr(machine, "CGROUPS", limited)
    assert cores() == 2


def test_systems_that_pin_no_process_to_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert cores() == 12


@pytest.mark.parametrize(
    ("limit", "given", "threads", "rounds"),
    [
        ("150000 100000", {}, "2", "5000"),
        ("50000 100000", {}, "1", "5000"),
        ("6400000 100000", {}, None, "5000"),
        ("max 100000", {}, None, "5000"),
        ("150000 100000", {"OMP_NUM_THREADS": "7"}, "7", "5000"),
        ("150000 100000", {"GOMP_SPINCOUNT": "7"}, "2", "7"),
        ("150000 100000", {"OMP_WAIT_POLICY": "active"}, "2", None),
    ],
)
def test_how_many_threads_libraries_start_and_how_long_these_spin(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    given: dict[str, str],
    threads: str | None,
    rounds: str | None,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    environment = dict(given)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(machine, "CGROUPS", write(tmp_path / "cgroup", {"cpu.max": limit}))
    set_thread_variables()
    assert environment.get("OMP_NUM_THREADS") == threads
    compiling = threads if "OMP_NUM_THREADS" not in given else "2"
    assert environment.get("TORCHINDUCTOR_COMPILE_THREADS") == compiling
    assert environment.get("GOMP_SPINCOUNT") == rounds


#: The program, in a container with a CPU limit.
LIMITED = """
import os, sys
from kserve_torch import cli
from kserve_torch.runtime import machine
os.sched_getaffinity = lambda _: set(range(64))
machine._limits = lambda: [1.5]
cli.main(["--check", "--model_dir", sys.argv[1]], "kserve_torch")
"""


def check_limit(script: str, *arguments: str) -> None:
    """See that torch is loaded with what a limit of 1.5 cores allows, as libgomp tells."""
    unset = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**environment, "OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GOMP_SPINCOUNT = '5000'" in done.stderr
    assert "OMP_NUM_THREADS = '2'" in done.stderr


def test_the_program_says_both_before_torch_is_loaded(tmp_path: Path) -> None:
    check_limit(LIMITED, str(tmp_path))


#: A program of somebody's own, in the same container.
OWN_PROGRAM = """
import os
from kserve_torch.runtime import machine
os.sched_getaffinity = lambda _: set(range(64))
machine._limits = lambda: [1.5]
from kserve_torch import BaseHandler
"""


def test_a_program_of_ones_own_keeps_to_the_limit_too() -> None:
    check_limit(OWN_PROGRAM)


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


def test_a_threads_memory_is_kept_for_its_next_batch(forks: Forks) -> None:
    kept, given_back = forks.run(FAULTS.format("keep_freed_memory()")), forks.run(FAULTS.format(""))
    assert int(kept) * 10 < int(given_back)


#: Prints the MB of blocks that lay between others, and that are given back.
UNLOADED = """
import psutil
from kserve_torch.runtime.machine import give_back_memory, keep_freed_memory
class Weights(list):
    pass
def megabytes():
    return psutil.Process().memory_info().rss // 2**20
keep_freed_memory()
weights, between = Weights(), []
for _ in range(100):
    weights.append(bytearray(b"w" * 2**20))
    between.append(bytearray(2000))
weights.append(weights)
del weights
before = megabytes()
give_back_memory()
print(before - megabytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is freed is another library's")
def test_the_memory_of_what_was_unloaded_is_given_back(forks: Forks) -> None:
    assert int(forks.run(UNLOADED)) > 90


#: Prints the MB that are given back of those that a thread has used last, and freed.
LAST = """
import psutil, threading
from kserve_torch.runtime.machine import (
    give_back_freed_memory, give_back_memory, keep_freed_memory
)
class Weights(list):
    pass
def work():
    weights = Weights(bytearray(b"w" * 2**20) for _ in range(40))
    sizes.append(psutil.Process().memory_info().rss)
    {}
    del weights
    give_back_freed_memory()
sizes = []
keep_freed_memory()
thread = threading.Thread(target=work)
thread.start()
thread.join()
{}
print(sizes[0] - psutil.Process().memory_info().rss >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what is freed is another library's")
@pytest.mark.parametrize(
    ("on_the_thread", "then"), [("", ""), ("weights.append(weights)", "give_back_memory()")]
)
def test_what_a_thread_has_used_last_is_given_back(
    forks: Forks, on_the_thread: str, then: str
) -> None:
    assert int(forks.run(LAST.format(on_the_thread, then))) > 35
