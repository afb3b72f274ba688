"""``ts.metrics.metric_cache_errors``."""

from __future__ import annotations


class MetricsCacheTypeError(TypeError):
    """An argument of the wrong type."""


class MetricsCacheValueError(ValueError):
    """An argument of the right type with a wrong value."""


class MetricsCacheKeyError(KeyError):
    """No such metric."""
