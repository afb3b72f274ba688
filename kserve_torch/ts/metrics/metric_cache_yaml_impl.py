"""``ts.metrics.metric_cache_yaml_impl``: ``context.metrics`` (CONTRACT M1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from types import NoneType
from typing import Any

from kserve_torch.events import Measured
from kserve_torch.settings.metrics_file import AUTOMATIC, ListedMetric
from kserve_torch.ts.metrics import metric_cache_errors as errors
from kserve_torch.ts.metrics.caching_metric import CachingMetric
from kserve_torch.ts.metrics.metric_cache_abstract import Dimensions, MetricCacheAbstract
from kserve_torch.ts.metrics.metric_type_enum import MetricTypes

log = logging.getLogger(__name__)


class MetricsCacheYamlImpl(MetricCacheAbstract):
    """Metrics of one handler instance by type and name, made on first use or by `add_listed`.

    Args:
        model_name: the value of the label ModelName.
        measure: takes each value as `Measured`, on the handler's thread; or None.
    """

    def __init__(
        self,
        *,
        model_name: str | None = None,
        measure: Callable[[Measured], None] | None = None,
    ) -> None:
        super().__init__(None, model_name)
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}
        self.store: list[Any] = []
        self._measure = measure

    def set_request_ids(self, request_ids: dict[int, str] | str | None) -> None:
        """The values that follow belong to these requests."""
        self.request_ids = request_ids

    def add_listed(self, listed: Iterable[ListedMetric]) -> None:
        """Make the metrics that the server's file lists, and those that every handler has."""
        for kind, name, unit, dimensions in (*listed, *AUTOMATIC):
            if name not in self.cache.get(MetricTypes(kind), {}):
                self.add_metric_to_cache(name, unit, dimensions, MetricTypes(kind))

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
        metric = self.cache.get(metric_type, {}).get(name)
        if metric is None:
            names = [label.name for label in labels]
            metric = self.add_metric_to_cache(name, unit, names, metric_type)
        values = {label.name: label.value for label in labels}
        if values.keys() == set(metric.dimension_names):
            # A metrics file may list them in an order of its own.
            values = {name: values[name] for name in metric.dimension_names}
        metric.add_or_update(value, list(values.values()), request_id or "")

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Make a metric, in place of one of the same name and type.

        Raises:
            MetricsCacheTypeError: an argument of the wrong type.
        """
        _check("metric_name", metric_name, str)
        _check("unit", unit, str)
        _check("metric_type", metric_type, MetricTypes)
        _check("dimension_names", dimension_names, (list, tuple, NoneType))
        metrics = self.cache.setdefault(metric_type, {})
        if metric_name in metrics:
            log.warning("metric %s:%s is made again", metric_type.value, metric_name)
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type, self._measure)
        metrics[metric_name] = metric
        return metric

    def get_metric(
        self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER
    ) -> CachingMetric:
        """The metric of that name and type.

        Raises:
            MetricsCacheKeyError: there is none.
            MetricsCacheTypeError: an argument of the wrong type.
        """
        _check("metric_name", metric_name, str)
        _check("metric_type", metric_type, MetricTypes)
        try:
            return self.cache[metric_type][metric_name]
        except KeyError:
            raise errors.MetricsCacheKeyError(f"no {metric_type.value} {metric_name!r}") from None

    def cache_keys(self) -> list[str]:
        """``type:name`` of every metric."""
        return [f"{kind.value}:{name}" for kind, metrics in self.cache.items() for name in metrics]


def _check(argument: str, value: Any, expected: type | tuple[type, ...]) -> None:
    if not isinstance(value, expected):
        raise errors.MetricsCacheTypeError(f"{argument}: got {type(value).__name__}: {value!r}")
