"""``ts.metrics.metric_type_enum``."""

from __future__ import annotations

from enum import Enum


class MetricTypes(Enum):
    """Kinds of metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
