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

#: An expression, and how its lines are called.
Query = tuple[str, str]
#: Title and unit, then the queries.
Panel = tuple[str, str, list[Query]]


def rate(series: str, labels: str, by: str) -> Query:
    """The rate of a counter, summed to these labels."""
    return f"sum by ({by}) (rate({series}{{{labels}}}[$__rate_interval]) {OURS})", _line(by)


def value(series: str, labels: str, by: str, how: str = "sum", word: str = "") -> Query:
    """A gauge, aggregated to these labels; ``word`` tells it from others on its panel."""
    return f"{how} by ({by}) ({series}{{{labels}}} {OURS})", _line(by, word)


def mean(numerator: str, denominator: str, word: str = "") -> Query:
    """The ratio of two counters' rates, by model; ``word`` as for `value`."""
    above, below = (rate(series, MODEL, "model_name")[0] for series in (numerator, denominator))
    return f"{above} / {below}", _line("model_name", word)


def quantiles(histogram: str) -> list[Query]:
    """Median, 95th and 99th percentile of a histogram by model."""
    buckets, _ = rate(f"{histogram}_bucket", MODEL, "model_name, le")
    return [
        (f"histogram_quantile({share}, {buckets})", _line("model_name", f"p{name}"))
        for share, name in ((0.5, "50"), (0.95, "95"), (0.99, "99"))
    ]


def _line(by: str, word: str = "") -> str:
    """What Grafana is to call a line: the values of its labels, then ``word``."""
    labels = [f"{{{{{label}}}}}" for label in by.split(", ")]
    return " ".join([*labels, word]).rstrip()


MODEL_VERSION = "model_name, model_version"
REQUESTS = "ts_inference_requests_total"
ROWS: dict[str, list[Panel]] = {
    "Traffic": [
        ("Requests by model", "reqps", [rate("requests_total", MODEL, "model_name")]),
        ("Requests by protocol", "reqps", [rate("requests_total", SPACE, "protocol")]),
        ("Errors by code", "reqps", [rate("requests_total", SPACE + ',code!~"2.."', "code")]),
        ("Rejected", "reqps", [rate("requests_shed_total", MODEL, "reason")]),
        ("Failed", "reqps", [rate("requests_failed_total", MODEL, "error")]),
        ("Requests, as TorchServe counts them", "reqps", [rate(REQUESTS, MODEL, MODEL_VERSION)]),
    ],
    "Latency by stage": [
        ("Whole request", "s", quantiles("request_duration_seconds")),
        ("Queue", "s", quantiles("queue_time_seconds")),
        ("Handler", "s", quantiles("handler_time_seconds")),
        (
            "Mean latency, as TorchServe measures it",
            "µs",
            [
                mean("ts_inference_latency_microseconds", REQUESTS),
                mean("ts_queue_latency_microseconds", REQUESTS, "queue"),
            ],
        ),
    ],
    "Queue and batches": [
        ("Queue depth", "short", [value("queue_depth", MODEL, "model_name")]),
        ("In flight", "short", [value("inflight_requests", MODEL, "model_name")]),
        (
            "Age of the oldest request",
            "s",
            [value("oldest_request_age_seconds", MODEL, "model_name", "max")],
        ),
        ("Rows per batch", "short", [mean("batch_rows_sum", "batch_rows_count")]),
        ("Requests per batch", "short", [mean("batch_requests_sum", "batch_requests_count")]),
        ("Batches", "ops", [rate("batch_rows_count", MODEL, "model_name")]),
        ("Batches re-run in parts", "ops", [rate("batch_splits_total", MODEL, "model_name")]),
    ],
    "Models and versions": [
        ("Ready pods", "short", [value("model_ready", MODEL, MODEL_VERSION)]),
        ("Workers", "short", [value("workers", MODEL, "model_name, state")]),
        (
            "Worker state changes",
            "ops",
            [rate("worker_events_total", MODEL, "model_name, state")],
        ),
        ("Worker load time", "ms", [value("WorkerLoadTime", SPACE, "pod, WorkerName", "max")]),
    ],
    "Memory, CPU and GPU": [
        ("Resident memory", "bytes", [value("process_resident_memory_bytes", SPACE, "pod")]),
        ("CPU cores in use", "short", [rate("process_cpu_seconds_total", SPACE, "pod")]),
        (
            "Node",
            "percent",
            [
                value("CPUUtilization", SPACE, "pod", "max", "CPU"),
                value("MemoryUtilization", SPACE, "pod", "max", "memory"),
                value("DiskUtilization", SPACE, "pod", "max", "disk"),
            ],
        ),
        (
            "GPU memory of the process",
            "bytes",
            [
                value("cuda_memory_allocated_bytes", SPACE, "pod, device", word="in tensors"),
                value("cuda_memory_reserved_bytes", SPACE, "pod, device", word="reserved"),
            ],
        ),
        (
            "GPU",
            "percent",
            [
                value("GPUUtilization", SPACE, "pod, DeviceId", "max", "busy"),
                value("GPUMemoryUtilization", SPACE, "pod, DeviceId", "max", "memory"),
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
