"""``ts.metrics.metric_abstract``."""

from __future__ import annotations

from collections.abc import Sequence

from kserve_torch.ts.metrics.metric_type_enum import MetricTypes
from kserve_torch.ts.metrics.unit import UNITS, MetricUnit, Units

__all__ = ["MetricAbstract", "MetricTypes", "MetricUnit", "Units"]


class MetricAbstract:
    """A metric by name, unit, label names and type."""

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.unit = UNITS.get(unit, unit)
        self.dimension_names = [*map(str, dimension_names or ())]
        self.metric_type = metric_type
