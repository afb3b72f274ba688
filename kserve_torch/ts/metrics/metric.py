"""``ts.metrics.metric``: one value of the old `MetricsStore`."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any

from kserve_torch.ts.metrics.caching_metric import CachingMetric
from kserve_torch.ts.metrics.dimension import Dimension
from kserve_torch.ts.metrics.metric_type_enum import MetricTypes
from kserve_torch.ts.metrics.unit import UNITS, MetricUnit, Units

__all__ = ["CachingMetric", "Metric", "MetricTypes", "MetricUnit", "Units"]


class Metric:
    """A value with its name, unit and labels; a counter adds up, others keep the last value."""

    def __init__(
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: Sequence[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.unit = UNITS.get(unit, unit)
        self.value = value
        self.dimensions = list(dimensions)
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: float) -> None:
        """Take the next value."""
        self.value = self.value + value if self.metric_method == "counter" else value

    def reset(self) -> None:
        """Begin at 0 again."""
        self.value = 0

    def __str__(self) -> str:
        labels = ",".join(map(str, self.dimensions))
        line = f"{self.name}.{self.unit}:{self.value}|#{labels}|#hostname:{socket.gethostname()}"
        stamp = f"{line},{int(time.time())}"
        return f"{stamp},{self.request_id}" if self.request_id else stamp

    def to_dict(self) -> dict[str, Any]:
        """As a dict with TorchServe's keys."""
        return {
            "MetricName": self.name,
            "Value": self.value,
            "Unit": self.unit,
            "Dimensions": self.dimensions,
            "Timestamp": int(time.time()),
            "HostName": socket.gethostname(),
            "RequestId": self.request_id,
        }
