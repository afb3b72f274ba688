"""The performance goals, as ratios to peers within one run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.peers import BATCH_ROWS, PEERS
from benchmarks.results import IN_PROCESS, Results, Sample, Weight

OURS = "ours"
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {"≥": operator.ge, "≤": operator.le}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One goal, and what was measured.

    Attributes:
        workload: what it is about.
        goal: as text, such as ``≥ 6 x TorchServe``.
        measured: the value that is compared; None if some part of it was not measured.
        met: whether the goal is met; None likewise.
    """

    workload: str
    goal: str
    measured: float | None
    met: bool | None


def verdicts(results: Results) -> list[Verdict]:
    """All goals, in the order of the table that they come from."""
    return [
        *_v1(results),
        _rate(results, "v2 [1,28,28] JSON, 16 connections", "v2@16", 2.5, "mlserver"),
        _rate(results, "v2 [1,3,224,224] JSON, 8 connections", "mean-json@8", 3, "kserve"),
        _rate(results, "the same, binary", "mean-binary@8", 30, "kserve"),
        _rate(results, "explain, 4 connections", "explain@4", 1.4, "torchserve"),
        _beside(results),
        _best(results),
        _weight(results, "memory, one model", "mnist", 0.8, lambda weight: weight.pss),
        _weight(results, "memory, ten models", "ten", 0.2, lambda weight: weight.pss),
        _weight(results, "first answer after start", "mnist", 0.6, lambda w: w.first_answer),
    ]


def _v1(results: Results) -> list[Verdict]:
    found = []
    for connections in (16, 64):
        what, scenario = f"v1 base64 PNG, {connections} connections", f"v1@{connections}"
        for factor, peer in ((6, "torchserve"), (3.5, "kserve"), (1, "mosec")):
            found.append(_rate(results, what, scenario, factor, peer))
        ours = results.sample(OURS, scenario, "v1")
        limit = results.sample(IN_PROCESS, f"v1@batch {BATCH_ROWS}", "v1")
        found.append(_ratio(what, "≥", 0.8, "the handler in batches", _of(ours), _of(limit)))
    ours = results.sample(OURS, "v1@1", "v1")
    loop = results.sample(IN_PROCESS, "v1@batch 1", "v1")
    above = ours.p50 - loop.p50 if ours and loop else None
    goal = "p50 ≤ 0.4 ms above the handler's"
    found.append(_verdict("v1 base64 PNG, 1 connection", goal, above, "≤", 0.4))
    return found


def _beside(results: Results) -> Verdict:
    alone = results.sample(OURS, "v1@4", "v1")
    beside = results.sample(OURS, "v1@4+explain@4", "v1")
    return _ratio(
        "predict p99 beside explanations",
        "≤",
        2,
        "alone",
        beside.p99 if beside else None,
        alone.p99 if alone else None,
    )


def _best(results: Results) -> Verdict:
    rates = {
        peer: sample.rate
        for peer in PEERS
        if peer != OURS and (sample := results.sample(peer, "resnet@8", "resnet"))
    }
    best = max(rates, key=rates.__getitem__, default=None)
    name = f"the best peer ({PEERS[best].title})" if best else "the best peer"
    ours = _of(results.sample(OURS, "resnet@8", "resnet"))
    what = "ResNet-18, 224x224 JPEG, 8 connections"
    return _ratio(what, "≥", 1.1, name, ours, rates[best] if best else None)


def _rate(results: Results, what: str, scenario: str, factor: float, peer: str) -> Verdict:
    workload = scenario.partition("@")[0]
    ours, theirs = (results.sample(name, scenario, workload) for name in (OURS, peer))
    return _ratio(what, "≥", factor, PEERS[peer].title, _of(ours), _of(theirs))


def _weight(
    results: Results, what: str, store: str, factor: float, value: Callable[[Weight], float]
) -> Verdict:
    pair: Sequence[float | None] = [
        value(weight) if (weight := results.weight(name, store)) else None
        for name in (OURS, "torchserve")
    ]
    return _ratio(what, "≤", factor, PEERS["torchserve"].title, *pair)


def _of(sample: Sample | None) -> float | None:
    return sample.rate if sample else None


def _ratio(
    what: str, sign: str, factor: float, of: str, value: float | None, base: float | None
) -> Verdict:
    ratio = value / base if value is not None and base else None
    return _verdict(what, f"{sign} {factor:g} x {of}", ratio, sign, factor)


def _verdict(what: str, goal: str, value: float | None, sign: str, bound: float) -> Verdict:
    met = None if value is None else _COMPARISONS[sign](value, bound)
    return Verdict(what, goal, value, met)
