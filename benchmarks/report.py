"""The results as text: a table of loads, one of memory and start, and one of goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.goals import OURS, Verdict, verdicts
from benchmarks.peers import PEERS
from benchmarks.results import IN_PROCESS, Results

_TITLES = {IN_PROCESS: "(no server)", **{name: peer.title for name, peer in PEERS.items()}}


def report(results: Results, facts: Mapping[str, str]) -> str:
    """Markdown that is also readable in a terminal."""
    parts = [
        "# Results",
        "Medians over the rounds. `ours/` is our rate divided by theirs; CPU is microseconds "
        "per request, of all the server's processes and of the load generator.",
        _table(*_loads(results)),
        "Memory in MB: pages that processes share counted once (PSS), and in brackets once in each "
        "process (the sum of RSS).",
        _table(*_weights(results)),
        "## Goals",
        _table(*_goals(verdicts(results))),
    ]
    if results.failures:
        parts += ["## Failures", *(f"- {f.peer}, {f.what}: {f.why}" for f in results.failures)]
    parts += ["## Environment", "\n".join(f"- {name}: {fact}" for name, fact in facts.items())]
    return "\n\n".join(parts) + "\n"


_Table = tuple[Sequence[str], list[Sequence[str]]]


def _loads(results: Results) -> _Table:
    head = (
        "load",
        "server",
        "requests/s",
        "ours/",
        "p50 ms",
        "p99 ms",
        "CPU",
        "generator",
        "wrong",
    )
    rows: list[Sequence[str]] = []
    seen = {(sample.scenario, sample.workload): None for sample in results.samples}
    for scenario, workload in seen:
        ours = results.sample(OURS, scenario, workload)
        for peer in _TITLES:
            sample = results.sample(peer, scenario, workload)
            if sample is None:
                continue
            ratio = f"{ours.rate / sample.rate:.2f}" if ours and sample.rate else ""
            measured = peer != IN_PROCESS
            rows.append(
                (
                    sample.load,
                    _TITLES[peer],
                    f"{sample.rate:,.0f}" if sample.rate >= 100 else f"{sample.rate:.1f}",
                    ratio,
                    f"{sample.p50:.2f}",
                    f"{sample.p99:.2f}",
                    f"{sample.server_cpu:,.0f}" if measured else "",
                    f"{sample.client_cpu:,.0f}" if measured else "",
                    f"{sample.wrong} of {sample.answers}" if measured else "",
                )
            )
    return head, rows


def _weights(results: Results) -> _Table:
    head = ("models", "server", "first answer s", "memory", "after load")
    rows: list[Sequence[str]] = []
    for store in dict.fromkeys(weight.store for weight in results.weights):
        for peer, title in _TITLES.items():
            weight = results.weight(peer, store)
            if weight is not None:
                memory = f"{weight.pss / 1e6:,.0f} ({weight.rss / 1e6:,.0f})"
                loaded = f"{weight.pss_loaded / 1e6:,.0f}"
                rows.append((store, title, f"{weight.first_answer:.2f}", memory, loaded))
    return head, rows


def _goals(found: Sequence[Verdict]) -> _Table:
    words = {True: "met", False: "MISSED", None: "not measured"}
    rows = [
        (v.workload, v.goal, "" if v.measured is None else f"{v.measured:.2f}", words[v.met])
        for v in found
    ]
    return ("workload", "goal", "measured", ""), list(rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(" | ".join(["", *map(str.ljust, line, widths), ""]).strip() for line in lines)
