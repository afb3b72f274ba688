"""``ts.metrics.unit``: unit words and how a metric's log line spells them (CONTRACT M4)."""

from __future__ import annotations


class Units:
    """The table from unit word to spelling."""

    def __init__(self) -> None:
        self.units = dict(UNITS)


UNITS = {
    "ms": "Milliseconds",
    "s": "Seconds",
    "percent": "Percent",
    "count": "Count",
    "MB": "Megabytes",
    "GB": "Gigabytes",
    "kB": "Kilobytes",
    "B": "Bytes",
    "": "unit",
}

#: TorchServe has one of these in each module that looks units up.
MetricUnit = Units()
