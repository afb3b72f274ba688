"""``ts.metrics.metrics_store``: the metrics object of old handlers' tests (CONTRACT C6)."""

from __future__ import annotations

from typing import Any

from kserve_torch.ts.metrics.metric import Metric
from kserve_torch.ts.metrics.metric_cache_abstract import Dimensions, MetricCacheAbstract
from kserve_torch.ts.metrics.metric_type_enum import MetricTypes


class MetricsStore(MetricCacheAbstract):
    """Collects metrics in ``store`` and sends them nowhere.

    Args:
        request_ids: row index -> request id, or one id for all.
        model_name: the value of the label ModelName.
    """

    def __init__(self, request_ids: Any, model_name: str) -> None:
        super().__init__(request_ids, model_name)
        self.store: list[Metric] = []
        self.cache: dict[str, Metric] = {}

    def _add(
        self,
        name: str,
        value: float,
        unit: str,
        request_id: str | None,
        dimensions: Dimensions,
        metric_type: MetricTypes,
    ) -> None:
        labels = self._add_default_dims(request_id, dimensions)
        key = "-".join([name, unit, str(request_id), *map(str, labels)])
        if key in self.cache:
            self.cache[key].update(value)
            return
        method = "counter" if unit == "count" else None
        self.cache[key] = Metric(name, value, unit, labels, request_id, method)
        self.store.append(self.cache[key])
