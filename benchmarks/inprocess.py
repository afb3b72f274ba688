"""The handler without a server: the right answers, and the upper limit for any server.

It runs in a process of its own, so that the load generator's process does not import torch.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds of calls that are not counted.
WARM_UP = 0.5


@dataclass(frozen=True, slots=True)
class Answers:
    """Answer each row by itself; the result is the list of answers."""

    rows: Sequence[Any]
    explain: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """Call the handler with batches of the rows for some seconds; the result is seconds per call.

    Attributes:
        threads: torch's intra-op threads.
        pause: seconds between two calls, in which other programs may use the caches.
    """

    rows: Sequence[Any]
    batch: int
    seconds: float
    threads: int
    pause: float = 0.0


def ask(store: Path, jobs: Sequence[Answers | Loop], prefix: Sequence[str] = ()) -> list[list[Any]]:
    """Run jobs in a process of their own; ``prefix`` is put before its command."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", "from benchmarks import inprocess; inprocess.main()"],
        input=pickle.dumps((store, jobs)),
        stdout=subprocess.PIPE,
        check=True,
    )
    results: list[list[Any]] = pickle.loads(done.stdout)
    return results


def main() -> None:
    """Do the pickled (store, jobs) of standard input; write their pickled results."""
    import torch

    from benchmarks.handling import only_handler
    from kserve_torch.messages import Verb

    store, jobs = pickle.load(sys.stdin.buffer)
    handler = only_handler(store)
    results: list[list[Any]] = []
    for job in jobs:
        if isinstance(job, Answers):
            verb = Verb.EXPLAIN if job.explain else Verb.PREDICT
            results.append([handler([row], verb)[0] for row in job.rows])
        else:
            torch.set_num_threads(job.threads)
            _loop(handler, job, WARM_UP)
            results.append(_loop(handler, job, job.seconds))
    pickle.dump(results, sys.stdout.buffer)


def _loop(handler: Any, job: Loop, seconds: float) -> list[float]:
    batches = [
        [job.rows[(start + offset) % len(job.rows)] for offset in range(job.batch)]
        for start in range(len(job.rows))
    ]
    durations: list[float] = []
    ends = time.perf_counter() + seconds
    before = time.perf_counter()
    while before < ends:
        handler(batches[len(durations) % len(batches)])
        durations.append(time.perf_counter() - before)
        if job.pause:
            time.sleep(job.pause)
        before = time.perf_counter()
    return durations
