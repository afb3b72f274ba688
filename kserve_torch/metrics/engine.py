"""Gauges that are read from the registry at each scrape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kserve_torch.metrics.family import Family, gauge

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

_VERSION = ("model_name", "model_version")


def engine_families(registry: Registry) -> Iterable[Family[Any]]:
    """Queues, workers and readiness of every model version."""
    server_ready = gauge("server_ready", "1 if the server is ready")
    model_ready = gauge("model_ready", "1 if the model version is ready", _VERSION)
    depth = gauge("queue_depth", "Requests waiting for a worker", _VERSION)
    inflight = gauge("inflight_requests", "Requests waiting or being processed", _VERSION)
    oldest = gauge(
        "oldest_request_age_seconds", "How long the first request in the queue has waited", _VERSION
    )
    workers = gauge("workers", "Workers, by state", (*_VERSION, "state"))
    server_ready.series().set(registry.ready())
    for version in registry.all():
        labels, now = (version.name, version.version), version.statistics()
        model_ready.series(*labels).set(version.ready)
        depth.series(*labels).set(now.queued)
        inflight.series(*labels).set(now.inflight)
        oldest.series(*labels).set(now.oldest_age)
        for state, count in {"READY": 0, **now.workers, "HUNG": now.hung}.items():
            workers.series(*labels, state).set(count)
    return server_ready, model_ready, depth, inflight, oldest, workers
