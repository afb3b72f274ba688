"""``ts.metrics.metric_cache_abstract``: what handlers call on ``context.metrics`` (CONTRACT M1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from kserve_torch.ts.metrics import metric_cache_errors as errors
from kserve_torch.ts.metrics.dimension import Dimension
from kserve_torch.ts.metrics.metric_type_enum import MetricTypes

TIME_UNITS = ("ms", "s")
SIZE_UNITS = ("MB", "kB", "GB", "B")

Dimensions = Sequence[Dimension] | None


class MetricCacheAbstract(ABC):
    """The methods by which handlers report values, for TorchServe's old and new metrics object.

    In all of them ``idx`` is the value's row, None for the whole batch, and ``dimensions`` are its
    own labels; ModelName and Level come after them (CONTRACT M3).

    Attributes:
        request_ids: row index -> request id of the running batch, one id for all, or None.
        model_name: the value of the label ModelName.
    """

    def __init__(self, request_ids: Any, model_name: str | None) -> None:
        self.request_ids = request_ids
        self.model_name = model_name

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Take a value of any unit."""
        self._add(name, value, unit, self._get_req(idx), dimensions, metric_type)

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Dimensions = ()
    ) -> None:
        """Add ``value``."""
        self._add(name, value, "count", self._get_req(idx), dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Take a time in ``ms`` or ``s``.

        Raises:
            MetricsCacheValueError: another unit.
        """
        if unit not in TIME_UNITS:
            raise errors.MetricsCacheValueError(f"unit: {unit!r}; allowed for a time: {TIME_UNITS}")
        self._add(name, value, unit, self._get_req(idx), dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Take a size in ``MB``, ``kB``, ``GB`` or ``B``.

        Raises:
            ValueError: another unit.
        """
        if unit not in SIZE_UNITS:
            raise ValueError(f"unit: {unit!r}; allowed for a size: {SIZE_UNITS}")
        self._add(name, value, unit, self._get_req(idx), dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        dimensions: Dimensions = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        """Take a percentage."""
        self._add(name, value, "percent", self._get_req(idx), dimensions, metric_type)

    def add_error(self, name: str, value: float, dimensions: Dimensions = ()) -> None:
        """Count ``value`` errors, of no request in particular."""
        self._add(name, value, "", None, dimensions, MetricTypes.COUNTER)

    @abstractmethod
    def _add(
        self,
        name: str,
        value: float,
        unit: str,
        request_id: str | None,
        dimensions: Dimensions,
        metric_type: MetricTypes,
    ) -> None:
        """Take a value of a request, or of none."""

    def _get_req(self, idx: int | None) -> str | None:
        """The row's request id, those of the whole batch joined by commas, or None."""
        ids: dict[int | None, str] | str | None = self.request_ids
        return ids.get(idx, ",".join(ids.values())) if isinstance(ids, dict) else ids

    def _add_default_dims(self, request_id: str | None, dimensions: Dimensions) -> list[Dimension]:
        """A new list: the caller's never changes (CONTRACT M3, T-42)."""
        own = list(dimensions or ())
        defaults = [Dimension("Level", "Error" if request_id is None else "Model")]
        if request_id is not None:
            defaults.insert(0, Dimension("ModelName", self.model_name))
        names = {dimension.name for dimension in own}
        return [*own, *(default for default in defaults if default.name not in names)]
