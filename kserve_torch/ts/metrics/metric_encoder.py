"""``ts.metrics.metric_encoder``."""

from __future__ import annotations

import json
from typing import Any

from kserve_torch.ts.metrics.dimension import Dimension
from kserve_torch.ts.metrics.metric import Metric

__all__ = ["Dimension", "Metric", "MetricEncoder"]


class MetricEncoder(json.JSONEncoder):
    """Writes metrics and their labels as JSON objects."""

    def default(self, obj: Any) -> Any:
        """The object's ``to_dict()``, if it is a metric or a label."""
        return obj.to_dict() if isinstance(obj, Metric | Dimension) else super().default(obj)
