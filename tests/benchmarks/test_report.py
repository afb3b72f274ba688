"""Medians, goals and tables of a made-up run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.goals import Verdict, verdicts
from benchmarks.plot import plot
from benchmarks.report import report
from benchmarks.results import IN_PROCESS, Failure, Results, Sample, Weight


def sample(peer: str, scenario: str, rate: float, **more: Any) -> Sample:
    workload = more.pop("workload", scenario.partition("@")[0])
    return Sample(
        **{"peer": peer, "scenario": scenario, "workload": workload, "rate": rate}
        | {"p50": 1.0, "p99": 2.0}
        | more
    )


def weight(peer: str, store: str, pss: int, first_answer: float) -> Weight:
    return Weight(
        peer=peer, store=store, first_answer=first_answer, rss=2 * pss, pss=pss, pss_loaded=pss
    )


@pytest.fixture
def results() -> Results:
    return Results(
        samples=[
            sample(IN_PROCESS, "v1@batch 1", 1000, p50=1.0),
            sample(IN_PROCESS, "v1@batch 16", 3000),
            sample("ours", "v1@1", 800, p50=1.3),
            *(sample("ours", "v1@16", rate, answers=10, wrong=1) for rate in (1800, 9000, 2400)),
            sample("torchserve", "v1@16", 400),
            sample("mosec", "v1@16", 3000),
            sample("ours", "v1@4", 1, p99=2.0),
            sample("ours", "v1@4+explain@4", 1, workload="v1", p99=5.0),
            sample("ours", "resnet@8", 30.0),
            sample("kserve", "resnet@8", 20.0),
            sample("mosec", "resnet@8", 28.0),
        ],
        weights=[weight("ours", "mnist", 500, 3.0), weight("torchserve", "mnist", 1000, 4.0)],
        failures=[Failure("litserve", "mnist", "ended with code 1")],
    )


def found(results: Results, workload: str, goal: str) -> Verdict:
    (verdict,) = [
        v for v in verdicts(results) if v.workload.startswith(workload) and goal in v.goal
    ]
    return verdict


def test_medians_over_rounds(results: Results) -> None:
    ours = results.sample("ours", "v1@16", "v1")
    assert ours is not None
    assert (ours.rate, ours.answers, ours.wrong) == (2400, 30, 3)
    assert results.sample("kserve", "v1@16", "v1") is None
    assert results.weight("kserve", "mnist") is None


@pytest.mark.parametrize(
    ("workload", "goal", "measured", "met"),
    [
        ("v1 base64 PNG, 16", "TorchServe", 6.0, True),
        ("v1 base64 PNG, 16", "mosec", 0.8, False),
        ("v1 base64 PNG, 16", "the handler", 0.8, True),
        ("v1 base64 PNG, 16", "plain kserve", None, None),
        ("v1 base64 PNG, 1 ", "p50", 0.3, True),
        ("predict p99", "alone", 2.5, False),
        ("ResNet-18", "mosec", 30 / 28, False),
        ("memory, one", "TorchServe", 0.5, True),
        ("memory, ten", "TorchServe", None, None),
        ("first answer", "TorchServe", 0.75, False),
    ],
)
def test_goals(
    results: Results, workload: str, goal: str, measured: float | None, met: bool | None
) -> None:
    verdict = found(results, workload, goal)
    assert verdict.met is met
    assert verdict.measured == (None if measured is None else pytest.approx(measured))


def test_a_run_of_nothing_misses_nothing() -> None:
    assert all(verdict.met is None for verdict in verdicts(Results()))


def test_report(results: Results) -> None:
    text = report(results, {"cores": "2"})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    assert ["v1@16", "TorchServe", "400", "6.00", "1.00", "2.00", "0", "0", "0 of 0"] in rows
    assert ["v1@16", "kserve_torch", "2,400", "1.00", "1.00", "2.00", "0", "0", "3 of 30"] in rows
    assert ["v1 base64 PNG, 16 connections", "≥ 1 x mosec", "0.80", "MISSED"] in rows
    assert "- litserve, mnist: ended with code 1" in text
    assert "- cores: 2" in text


def test_plot(results: Results, tmp_path: Path) -> None:
    plot(results, tmp_path / "results.png")
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_plot(tmp_path: Path) -> None:
    plot(Results(), tmp_path / "results.png")
    assert not list(tmp_path.iterdir())
