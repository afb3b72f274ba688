"""Writes ``dashboard.json``, the Grafana dashboard: ``python dashboard.py > dashboard.json``.

Grafana's own form says everything twenty times; the table here says it once.
"""

from __future__ import annotations

import json
from typing import Any

#: Every panel reads the series of the chosen namespaces and models, or of the namespaces alone.
MODEL = 'namespace=~"$namespace",model_name=~"$model"'
SPACE = 'namespace=~"$namespace"'
#: Other programs have series of the same names; those of this server come from where this one does.
OURS = "and on (job, instance) server_ready"

Query = tuple[str, str]
Panel = tuple[str, str, list[Query]]


def rate(series: str, labels: str, by: str) -> str:
    """The rate of a counter, summed to these labels."""
    return f"sum by ({by}) (rate({series}{{{labels}}}[$__rate_interval]) {OURS})"


def quantiles(histogram: str) -> list[Query]:
    """Median, 95th and 99th percentile of a histogram by model."""
    buckets = rate(f"{histogram}_bucket", MODEL, "model_name, le")
    return [
        (f"histogram_quantile({share}, {buckets})", f"{{{{model_name}}}} p{name}")
        for share, name in ((0.5, "50"), (0.95, "95"), (0.99, "99"))
    ]


def mean(numerator: str, denominator: str, by: str = "model_name") -> str:
    """The ratio of two counters' rates."""
    return f"{rate(numerator, MODEL, by)} / {rate(denominator, MODEL, by)}"


def value(series: str, labels: str, by: str, how: str = "sum") -> str:
    """A gauge, aggregated to these labels."""
    return f"{how} by ({by}) ({series}{{{labels}}} {OURS})"


ROWS: dict[str, list[Panel]] = {
    "Traffic": [
        (
            "Requests by model",
            "reqps",
            [(rate("requests_total", MODEL, "model_name"), "{{model_name}}")],
        ),
        (
            "Requests by protocol",
            "reqps",
            [(rate("requests_total", SPACE, "protocol"), "{{protocol}}")],
        ),
        (
            "Errors by code",
            "reqps",
            [(rate("requests_total", SPACE + ',code!~"2.."', "code"), "{{code}}")],
        ),
        ("Rejected", "reqps", [(rate("requests_shed_total", MODEL, "reason"), "{{reason}}")]),
        ("Failed", "reqps", [(rate("requests_failed_total", MODEL, "error"), "{{error}}")]),
        (
            "Requests, as TorchServe counts them",
            "reqps",
            [
                (
                    rate("ts_inference_requests_total", MODEL, "model_name, model_version"),
                    "{{model_name}} {{model_version}}",
                )
            ],
        ),
    ],
    "Latency by stage": [
        ("Whole request", "s", quantiles("request_duration_seconds")),
        ("Queue", "s", quantiles("queue_time_seconds")),
        ("Handler", "s", quantiles("handler_time_seconds")),
        (
            "Mean latency, as TorchServe measures it",
            "µs",
            [
                (
                    mean("ts_inference_latency_microseconds", "ts_inference_requests_total"),
                    "{{model_name}}",
                ),
                (
                    mean("ts_queue_latency_microseconds", "ts_inference_requests_total"),
                    "{{model_name}} queue",
                ),
            ],
        ),
    ],
    "Queue and batches": [
        ("Queue depth", "short", [(value("queue_depth", MODEL, "model_name"), "{{model_name}}")]),
        (
            "In flight",
            "short",
            [(value("inflight_requests", MODEL, "model_name"), "{{model_name}}")],
        ),
        (
            "Age of the oldest request",
            "s",
            [(value("oldest_request_age_seconds", MODEL, "model_name", "max"), "{{model_name}}")],
        ),
        (
            "Rows per batch",
            "short",
            [(mean("batch_rows_sum", "batch_rows_count"), "{{model_name}}")],
        ),
        (
            "Requests per batch",
            "short",
            [(mean("batch_requests_sum", "batch_requests_count"), "{{model_name}}")],
        ),
        ("Batches", "ops", [(rate("batch_rows_count", MODEL, "model_name"), "{{model_name}}")]),
        (
            "Batches re-run in parts",
            "ops",
            [(rate("batch_splits_total", MODEL, "model_name"), "{{model_name}}")],
        ),
    ],
    "Models and versions": [
        (
            "Ready pods",
            "short",
            [
                (
                    value("model_ready", MODEL, "model_name, model_version"),
                    "{{model_name}} {{model_version}}",
                )
            ],
        ),
        (
            "Workers",
            "short",
            [(value("workers", MODEL, "model_name, state"), "{{model_name}} {{state}}")],
        ),
        (
            "Worker state changes",
            "ops",
            [(rate("worker_events_total", MODEL, "model_name, state"), "{{model_name}} {{state}}")],
        ),
        (
            "Worker load time",
            "ms",
            [(value("WorkerLoadTime", SPACE, "pod, WorkerName", "max"), "{{pod}} {{WorkerName}}")],
        ),
    ],
    "Memory, CPU and GPU": [
        (
            "Resident memory",
            "bytes",
            [(value("process_resident_memory_bytes", SPACE, "pod"), "{{pod}}")],
        ),
        (
            "CPU cores in use",
            "short",
            [(rate("process_cpu_seconds_total", SPACE, "pod"), "{{pod}}")],
        ),
        (
            "Node",
            "percent",
            [
                (value("CPUUtilization", SPACE, "pod", "max"), "{{pod}} CPU"),
                (value("MemoryUtilization", SPACE, "pod", "max"), "{{pod}} memory"),
                (value("DiskUtilization", SPACE, "pod", "max"), "{{pod}} disk"),
            ],
        ),
        (
            "GPU memory of the process",
            "bytes",
            [
                (
                    value("cuda_memory_allocated_bytes", SPACE, "pod, device"),
                    "{{pod}} {{device}} in tensors",
                ),
                (
                    value("cuda_memory_reserved_bytes", SPACE, "pod, device"),
                    "{{pod}} {{device}} reserved",
                ),
            ],
        ),
        (
            "GPU",
            "percent",
            [
                (
                    value("GPUUtilization", SPACE, "pod, DeviceId", "max"),
                    "{{pod}} {{DeviceId}} busy",
                ),
                (
                    value("GPUMemoryUtilization", SPACE, "pod, DeviceId", "max"),
                    "{{pod}} {{DeviceId}} memory",
                ),
            ],
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's form."""
    return {
        "uid": "kserve-torch",
        "title": "kserve-torch",
        "tags": ["kserve", "pytorch"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    choices = [
        ("namespace", "label_values(server_ready, namespace)"),
        ("model", 'label_values(model_ready{namespace=~"$namespace"}, model_name)'),
    ]
    source: dict[str, Any] = {"name": "datasource", "type": "datasource", "query": "prometheus"}
    return [source] + [
        {
            "name": name,
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "$datasource"},
            "query": {"query": query, "refId": name},
            "definition": query,
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }
        for name, query in choices
    ]


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": place})
        for number, panel in enumerate(row):
            place = {"x": number % 3 * 8, "y": top + 1 + number // 3 * 8, "w": 8, "h": 8}
            panels.append(_panel(len(panels) + 1, panel, place))
        top += 1 + (len(row) + 2) // 3 * 8
    return panels


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    title, unit, queries = panel
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1, ensure_ascii=False))
