"""Measure this server and its peers, each started in turn on the same archives.

Prints tables and writes them, all numbers and a plot into a folder. Peers that are not installed
are skipped; `python -m benchmarks.peers setup` installs them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.environment import environment
from benchmarks.limit import limited
from benchmarks.peers import PEERS, Peer
from benchmarks.plot import plot
from benchmarks.report import report
from benchmarks.rounds import GROUPS, Plan, Rounds
from benchmarks.workloads import ROOT

#: Rounds and seconds of each load.
FULL, QUICK = (3, 5.0), (1, 1.0)


def main() -> int:
    """Measure; 1 if a peer failed or gave a wrong answer."""
    options = _options()
    rounds, seconds = QUICK if options.quick else FULL
    options.output.mkdir(parents=True, exist_ok=True)
    facts = environment()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmarks-"))
        try:
            prefix = stack.enter_context(_limit(options.cpu_limit))
        except OSError as error:
            sys.exit(f"--cpu-limit: the control groups cannot be changed: {error}")
        _say("building archives")
        stores = Path(folder, "stores")
        build = [sys.executable, "-m", "benchmarks.archives", str(stores)]
        subprocess.run(build, check=True, cwd=ROOT)
        plan = Plan(
            peers=_installed(options.peers),
            groups=options.workloads,
            rounds=options.rounds or rounds,
            seconds=options.seconds or seconds,
            stores=stores,
            work=Path(folder, "work"),
            prefix=prefix,
        )
        if options.cpu_limit:
            facts["CPU limit"] = f"{options.cpu_limit:g} cores for each server and for the handler"
        facts["plan"] = f"{plan.rounds} rounds, {plan.seconds:g} s of each load"
        results = Rounds(plan, _say).run()
        _keep_logs(plan.work, options.output / "logs")
    text = report(results, facts)
    print(f"\n{text}")
    (options.output / "results.md").write_text(text)
    document = {"environment": facts, **asdict(results)}
    (options.output / "results.json").write_text(json.dumps(document, indent=1))
    plot(results, options.output / "results.png")
    _say(f"written to {options.output}")
    return 1 if results.failures or any(sample.wrong for sample in results.samples) else 0


def _limit(cores: float | None) -> contextlib.AbstractContextManager[Sequence[str]]:
    return contextlib.nullcontext(()) if cores is None else limited(cores)


def _installed(names: Sequence[str]) -> list[Peer]:
    for name in names:
        if not PEERS[name].installed:
            _say(f"{name} is left out: not installed (python -m benchmarks.peers setup {name})")
    return [PEERS[name] for name in names if PEERS[name].installed]


def _keep_logs(work: Path, folder: Path) -> None:
    """Keep what the servers printed; TorchServe's own files go."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for log in work.glob("*/log"):
        shutil.copy(log, folder / f"{log.parent.name}.log")


_began = time.monotonic()


def _say(text: str) -> None:
    print(f"{time.monotonic() - _began:6.1f} s  {text}", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="smoke test: one round of 1 s loads")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help=f"number of rounds (default: {FULL[0]})"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"length of each load (default: {FULL[1]:g})"
    )
    for name, known in (("peers", tuple(PEERS)), ("workloads", GROUPS)):
        parser.add_argument(
            f"--{name}",
            type=functools.partial(_subset, known),
            default=list(known),
            metavar="A,B",
            help=f"some of {','.join(known)} (default: all)",
        )
    parser.add_argument(
        "--cpu-limit",
        type=_cores,
        metavar="N",
        help="cores that a server may keep busy, as a pod's limits.cpu; needs root (default: all)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results",
        metavar="DIR",
        help="where results.md, results.json, results.png and the logs go "
        "(default: benchmarks/results)",
    )
    return parser.parse_args()


def _cores(text: str) -> float:
    cores = float(text)
    if not 0 < cores < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of cores")
    return cores


def _subset(known: Sequence[str], text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return [name for name in known if name in names]


if __name__ == "__main__":
    sys.exit(main())
