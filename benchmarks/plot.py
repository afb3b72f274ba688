"""The results as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.goals import OURS
from benchmarks.peers import PEERS
from benchmarks.results import Results

mpl.use("agg")

_COLOURS = {OURS: "#d1495b"}
_OTHERS = "#8d99ae"
#: Panels: the title, and what gives the value of a peer.
_Value = Callable[[str], float | None]


def plot(results: Results, path: Path) -> None:
    """Write a PNG with a panel of bars per comparison; longer is better but for the last three."""
    panels = {title: bars for title, value in _panels(results).items() if (bars := _bars(value))}
    if not panels:
        return
    columns = 4
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4 * columns, 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (title, bars) in zip(axes, panels.items(), strict=False):
        _panel(axis, title, bars)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    figure.savefig(path, dpi=100)


def _panels(results: Results) -> dict[str, _Value]:
    def rate(scenario: str) -> _Value:
        workload = scenario.partition("@")[0]
        return lambda peer: (
            sample.rate if (sample := results.sample(peer, scenario, workload)) else None
        )

    def memory(store: str) -> _Value:
        return lambda peer: weight.pss / 1e6 if (weight := results.weight(peer, store)) else None

    def first(peer: str) -> float | None:
        weight = results.weight(peer, "mnist")
        return weight.first_answer if weight else None

    return {
        "v1 MNIST, 1 connection (requests/s)": rate("v1@1"),
        "v1 MNIST, 16 connections": rate("v1@16"),
        "v1 MNIST, 64 connections": rate("v1@64"),
        "v2 MNIST tensor, 16 connections": rate("v2@16"),
        "600 kB tensor as JSON, 8 connections": rate("mean-json@8"),
        "600 kB tensor, binary, 8 connections": rate("mean-binary@8"),
        "explain, 4 connections": rate("explain@4"),
        "ResNet-18, 8 connections": rate("resnet@8"),
        "memory, one model (MB)": memory("mnist"),
        "memory, ten models (MB)": memory("ten"),
        "first answer after start (s)": first,
    }


def _bars(value: _Value) -> Mapping[str, float]:
    return {peer: found for peer in PEERS if (found := value(peer)) is not None}


def _panel(axis: Any, title: str, bars: Mapping[str, float]) -> None:
    peers = list(bars)[::-1]
    drawn = axis.barh(
        [PEERS[peer].title for peer in peers],
        [bars[peer] for peer in peers],
        color=[_COLOURS.get(peer, _OTHERS) for peer in peers],
    )
    axis.bar_label(drawn, fmt="{:,.4g}", padding=3)
    axis.margins(x=0.2)
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
