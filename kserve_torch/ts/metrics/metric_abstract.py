"""``ts.metrics.metric_abstract``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from kserve_torch.ts.metrics.metric_type_enum import MetricTypes
from kserve_torch.ts.metrics.unit import UNITS, MetricUnit, Units

__all__ = ["MetricAbstract", "MetricTypes", "MetricUnit", "Units"]


class MetricAbstract(ABC):
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

    @abstractmethod
    def add_or_update(
        self, value: float, dimension_values: Sequence[Any] = (), request_id: str = ""
    ) -> None:
        """Take a value for these labels."""

    @abstractmethod
    def update(self, value: float, request_id: str = "", dimensions: Sequence[Any] = ()) -> None:
        """Take a value with labels as `Dimension` objects."""
