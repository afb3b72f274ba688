"""``ts.metrics.caching_metric``: a metric that reports each value to the server."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from kserve_torch.events import Measured
from kserve_torch.ts.metrics.dimension import Dimension
from kserve_torch.ts.metrics.metric_abstract import MetricAbstract
from kserve_torch.ts.metrics.metric_type_enum import MetricTypes

#: TorchServe's name: its documents tell operators to set this logger's level (CONTRACT M5).
log = logging.getLogger("ts.metrics.caching_metric")


class CachingMetric(MetricAbstract):
    """A metric under a cache; wrong values are logged, never raised (CONTRACT M2).

    Args:
        measure: takes each value as `Measured`, or None.
    """

    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
        measure: Callable[[Measured], None] | None = None,
    ) -> None:
        super().__init__(metric_name, unit, dimension_names, metric_type)
        self._unit_word = unit or "unit"
        self._measure = measure
        self._complained = False

    def add_or_update(
        self, value: float, dimension_values: Sequence[Any] = (), request_id: str = ""
    ) -> None:
        """Take ``value``, one label value for each of the metric's label names."""
        number = _number(value)
        if number is None:
            self._complain(value)
            return
        fault = self._fault(number, dimension_values)
        if fault:
            log.error("[METRICS]%s: value %s refused: %s", self.metric_name, value, fault)
            return
        labels = tuple(zip(self.dimension_names, map(str, dimension_values), strict=True))
        if log.isEnabledFor(logging.INFO):
            self.emit_metrics(request_id, value, ",".join(f"{n}:{v}" for n, v in labels))
        if self._measure is not None:
            kind = self.metric_type.value
            name, unit = self.metric_name, self._unit_word
            self._measure(Measured(name, kind, unit, labels, number))

    def _complain(self, value: Any) -> None:
        """Say once that a value is no number; TorchServe drops it, and a handler repeats it."""
        if not self._complained:
            self._complained = True
            text = "[METRICS]%s: %.80r is no number; such values are dropped, this is said once"
            log.error(text, self.metric_name, value)

    def _fault(self, value: float, dimension_values: Sequence[Any]) -> str:
        if len(dimension_values) != len(self.dimension_names):
            return f"got labels {list(dimension_values)} for {self.dimension_names}"
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            return "a counter cannot go down"
        return ""

    def emit_metrics(self, request_id: str, value: float, dimension_string: str) -> None:
        """Write TorchServe's line for a value to the log (CONTRACT M5)."""
        line = f"[METRICS]{self.metric_name}.{self.unit}:{value}|#{dimension_string}"
        line += (
            f"|#type:{self.metric_type.name}|#hostname:{socket.gethostname()},{int(time.time())}"
        )
        log.info("%s,%s" if request_id else "%s%s", line, request_id or "")

    def update(
        self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()
    ) -> None:
        """Take ``value`` with new label names; for old handlers."""
        self.dimension_names = [str(dimension.name) for dimension in dimensions]
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)


def _number(value: Any) -> float | None:
    """``value``, which may be text, an array or a tensor, as a number; None if it is not one."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
