"""``ts.metrics.metric_cache_yaml_impl``: ``context.metrics`` (CONTRACT M1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from kserve_torch.events import Measured
from kserve_torch.settings.metrics_file import AUTOMATIC, ListedMetric
from kserve_torch.ts.metrics import metric_cache_errors as errors
from kserve_torch.ts.metrics.caching_metric import CachingMetric
from kserve_torch.ts.metrics.metric_cache_abstract import MetricCacheAbstract
from kserve_torch.ts.metrics.metric_type_enum import MetricTypes

log = logging.getLogger(__name__)


class MetricsCacheYamlImpl(MetricCacheAbstract):
    """Metrics of one handler instance.

    Args:
        config_file_path: a YAML file whose ``model_metrics`` lists metrics, or None for none.
        model_name: the value of the label ModelName.
        measure: takes each value as `Measured`, on the handler's thread; or None.

    Raises:
        MetricsCacheIOError: the file cannot be read.
        MetricsCachePyYamlError: the file is not YAML.
    """

    def __init__(
        self,
        config_file_path: str | None = None,
        *,
        model_name: str | None = None,
        measure: Callable[[Measured], None] | None = None,
    ) -> None:
        super().__init__(config_file_path, model_name)
        self._measure = measure
        self._parsed_file: Any = _read(config_file_path) if config_file_path else {}

    def initialize_cache(self) -> None:
        """Make the metrics that the file lists.

        Raises:
            MetricsCacheKeyError: an unknown type, or a metric without name, unit or dimensions.
            MetricsCacheValueError: the file has no ``model_metrics``.
        """
        section = (self._parsed_file or {}).get("model_metrics")
        if not section:
            raise errors.MetricsCacheValueError("metrics file: model_metrics is missing")
        for kind, metrics in section.items():
            for metric in metrics:
                self._add_listed(kind, metric)

    def _add_listed(self, kind: str, metric: dict[str, Any]) -> None:
        try:
            name, unit, labels = metric["name"], metric["unit"], metric["dimensions"]
            metric_type = MetricTypes(kind)
        except KeyError as error:
            raise errors.MetricsCacheKeyError(
                f"model_metrics.{kind}: {error} is missing"
            ) from error
        except ValueError as error:
            raise errors.MetricsCacheKeyError(f"model_metrics: {kind} is no metric type") from error
        self.add_metric_to_cache(name, unit, labels, metric_type)

    def add_listed(self, listed: Iterable[ListedMetric]) -> None:
        """Make the metrics that the server's own file lists, and those that every handler has."""
        for kind, name, unit, dimensions in (*listed, *AUTOMATIC):
            if name not in self.cache.get(MetricTypes(kind), {}):
                self.add_metric_to_cache(name, unit, dimensions, MetricTypes(kind))

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


def _read(path: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise errors.MetricsCacheIOError(f"metrics file {path}: {error}") from error
    except yaml.YAMLError as error:
        raise errors.MetricsCachePyYamlError(f"metrics file {path}: {error}") from error
