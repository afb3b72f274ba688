"""``ts.metrics.metrics_store``: the metrics object of old handlers' tests (CONTRACT C6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kserve_torch.ts.metrics.dimension import Dimension
from kserve_torch.ts.metrics.metric import Metric
from kserve_torch.ts.metrics.metric_cache_abstract import SIZE_UNITS, TIME_UNITS


class MetricsStore:
    """Collects metrics in ``store`` and sends them nowhere.

    Args:
        request_ids: row index -> request id, or one id for all.
        model_name: the value of the label ModelName.
    """

    def __init__(self, request_ids: Any, model_name: str) -> None:
        self.request_ids = request_ids
        self.model_name = model_name
        self.store: list[Metric] = []
        self.cache: dict[str, Metric] = {}

    def add_counter(
        self, name: str, value: float, idx: int | None = None, dimensions: Any = None
    ) -> None:
        """Count ``value`` more."""
        self._add(name, value, "count", self._get_req(idx), dimensions, "counter")

    def add_time(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "ms",
        dimensions: Any = None,
    ) -> None:
        """Take a time in ``ms`` or ``s``; ValueError for other units."""
        self._add_in(TIME_UNITS, name, value, idx, unit, dimensions)

    def add_size(
        self,
        name: str,
        value: float,
        idx: int | None = None,
        unit: str = "MB",
        dimensions: Any = None,
    ) -> None:
        """Take a size in ``MB``, ``kB``, ``GB`` or ``B``; ValueError for other units."""
        self._add_in(SIZE_UNITS, name, value, idx, unit, dimensions)

    def add_percent(
        self, name: str, value: float, idx: int | None = None, dimensions: Any = None
    ) -> None:
        """Take a percentage."""
        self._add(name, value, "percent", self._get_req(idx), dimensions)

    def add_error(self, name: str, value: Any, dimensions: Any = None) -> None:
        """Take an error, of no request in particular."""
        self._add(name, value, "", None, dimensions)

    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: int | None = None,
        dimensions: Any = None,
    ) -> None:
        """Take a value of any unit."""
        self._add(name, value, unit, self._get_req(idx), dimensions)

    def _add_in(
        self,
        allowed: Sequence[str],
        name: str,
        value: float,
        idx: int | None,
        unit: str,
        dimensions: Any,
    ) -> None:
        if unit not in allowed:
            raise ValueError(f"unit: {unit!r}; allowed: {', '.join(allowed)}")
        self._add(name, value, unit, self._get_req(idx), dimensions)

    def _add(
        self,
        name: str,
        value: float,
        unit: str,
        request_id: Any,
        dimensions: Sequence[Dimension] | None,
        method: str | None = None,
    ) -> None:
        labels = list(dimensions or ())
        if request_id is None:
            labels.append(Dimension("Level", "Error"))
        else:
            labels += [Dimension("ModelName", self.model_name), Dimension("Level", "Model")]
        key = "-".join([name, unit, str(request_id), *map(str, labels)])
        if key in self.cache:
            self.cache[key].update(value)
            return
        self.cache[key] = Metric(name, value, unit, labels, request_id, method)
        self.store.append(self.cache[key])

    def _get_req(self, idx: int | None) -> Any:
        if not isinstance(self.request_ids, dict):
            return self.request_ids
        return self.request_ids.get(idx, ",".join(self.request_ids.values()))
