"""``ts.metrics.unit``: units and their spelling in a metric's log line (CONTRACT M4)."""

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

#: TorchServe has one in each module that looks up units.
MetricUnit = Units()
