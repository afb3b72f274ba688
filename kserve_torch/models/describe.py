"""What the server says of itself and its models, as values that HTTP and gRPC send alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import kserve_torch
from kserve_torch.engine.worker import WorkerState
from kserve_torch.models.state import State
from kserve_torch.redact import redacted

if TYPE_CHECKING:
    from kserve_torch.engine.worker import Worker
    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion

SERVER_NAME = "kserve_torch"
#: Clients look for either spelling of the first (CONTRACT O46).
EXTENSIONS = (
    "model_repository_extension",
    "model_repository",
    "binary_tensor_data",
    "parameters",
    "explain",
)
#: Most models on one page of a list, and the length of a page when none is asked for.
PAGE_LIMIT = 100

# Members of a description that come from the archive's model-config.yaml: the member's name, its
# key there and its default. Handlers and clients read them.
_FROM_CONFIG: tuple[tuple[str, str, Any], ...] = (
    ("continuousBatching", "continuousBatching", False),
    ("useJobTicket", "useJobTicket", False),
    ("useVenv", "useVenv", False),
    ("stateful", "sequenceBatching", False),
    ("sequenceMaxIdleMSec", "sequenceMaxIdleMSec", 0),
    ("sequenceTimeoutMSec", "sequenceTimeoutMSec", 0),
    ("maxNumSequence", "maxNumSequence", 0),
    ("maxSequenceJobQueueSize", "maxSequenceJobQueueSize", 0),
)


# --- the open inference protocol ---


def server_metadata() -> dict[str, Any]:
    """The server metadata response (CONTRACT O4)."""
    return {
        "name": SERVER_NAME,
        "version": kserve_torch.__version__,
        "extensions": list(EXTENSIONS),
    }


def model_metadata(registry: Registry, model: str, version: str | None) -> dict[str, Any]:
    """The model metadata response (CONTRACT O5, O12, O13).

    Raises:
        ModelNotFound: no such model, or no such version of it.
    """
    found = registry.find(model, version)
    return {
        "name": found.name,
        "versions": [each.version for each in registry.versions(model)],
        "platform": found.archive.platform if found.archive is not None else "",
        "inputs": list(found.signature("inputs")),
        "outputs": list(found.signature("outputs")),
    }


def repository_index(registry: Registry, only_ready: bool) -> list[dict[str, str]]:
    """One entry per model version: name, version, state, reason (CONTRACT O80)."""
    listed = ((v, *registry.standing(v)) for v in registry.all())
    return [
        {"name": v.name, "version": v.version, "state": state.value, "reason": reason}
        for v, state, reason in listed
        if state is State.READY or not only_ready
    ]


# --- TorchServe: names, order and units of the members are its own (CONTRACT G1-G6) ---


def healthy(registry: Registry) -> bool:
    """Whether every model has its workers, as TorchServe's ping says (CONTRACT N1, T-46)."""
    serving = not registry.draining and not registry.opening
    return serving and all(_has_workers(registry, model) for model in registry.names())


def _has_workers(registry: Registry, model: str) -> bool:
    """Whether the default version is loaded and has its workers."""
    version = registry.find(model)
    fewest, _ = version.scaled_to
    return version.state is State.READY and version.ready_workers >= fewest


def model_version(version: ModelVersion) -> dict[str, Any]:
    """One element of a describe answer (CONTRACT G3).

    Delays are milliseconds and time-outs seconds, both whole numbers.
    """
    return {
        "modelName": version.name,
        "modelVersion": version.version,
        "modelUrl": _url(version),
        "runtime": version.archive.manifest.runtime if version.archive else "python",
        **_limits(version),
        **{member: version.config.get(key, default) for member, key, default in _FROM_CONFIG},
        "loadedAtStartup": version.loaded_at_startup,
        "workers": [_worker(worker) for worker in version.workers],
        "jobQueueStatus": _queue(version),
    }


def list_models(registry: Registry, limit: int = PAGE_LIMIT, token: int = 0) -> dict[str, Any]:
    """One page of the registered models, by name (CONTRACT G5, T-34).

    Args:
        registry: the models; each is listed with its default version's archive.
        limit: most models on the page; outside 0 to 100 it counts as 100.
        token: where the page starts: the ``nextPageToken`` of the page before.
    """
    names = registry.names()
    start = max(0, token)
    end = start + (limit if 0 <= limit <= PAGE_LIMIT else PAGE_LIMIT)
    page: dict[str, Any] = {"nextPageToken": str(end)} if end < len(names) else {}
    page["models"] = [
        {"modelName": name, "modelUrl": _url(registry.find(name))} for name in names[start:end]
    ]
    return page


# --- parts of an element ---


def _url(version: ModelVersion) -> str:
    """The URL or file it was registered from; who lists models need not know its password."""
    source = version.origin.source
    if isinstance(source, Path):
        return version.archive.source.name if version.archive else source.name
    return redacted(source or "")


def _limits(version: ModelVersion) -> dict[str, Any]:
    limits = version.limits
    fewest, most = version.scaled_to
    return {
        "minWorkers": fewest,
        "maxWorkers": most,
        "batchSize": limits.batch_size,
        "maxBatchDelay": round(limits.max_batch_delay * 1000),
        "responseTimeout": round(limits.response_timeout),
        "startupTimeout": round(limits.startup_timeout),
        "maxRetryTimeoutInSec": round(limits.max_retry_timeout),
        "clientTimeoutInMills": round((limits.client_timeout or 0) * 1000),
        # Archives that want parallel processes are refused at load time (CONTRACT Y5).
        "parallelType": "",
        "parallelLevel": 0,
        **_device(version),
    }


def _device(version: ModelVersion) -> dict[str, Any]:
    on_gpu = any(_gpu(worker) for worker in version.workers)
    kind = version.limits.device_type or ("gpu" if on_gpu else "cpu")
    device: dict[str, Any] = {"deviceType": kind}
    if version.limits.device_ids:
        device["deviceIds"] = list(version.limits.device_ids)
    return device


def _gpu(worker: Worker) -> str | None:
    """The GPU that a worker is on; None for the CPU, and without an instance."""
    instance = worker.instance
    return instance.device if instance and instance.device.startswith("cuda") else None


def _worker(worker: Worker) -> dict[str, Any]:
    staying = worker.state in (WorkerState.READY, WorkerState.LOADING) and not worker.leaving
    gpu = _gpu(worker)
    return {
        "id": str(worker.number),
        "startTime": worker.started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "status": worker.state.value if staying else "UNLOADING",
        # Of the process: its workers are threads, so each of them has all of it.
        "memoryUsage": psutil.Process().memory_info().rss,
        "pid": os.getpid(),
        "gpu": gpu is not None,
        "gpuUsage": gpu or "N/A",
    }


def _queue(version: ModelVersion) -> dict[str, int]:
    queued = version.statistics().queued
    return {
        "remainingCapacity": max(0, version.limits.queue_size - queued),
        "pendingRequests": queued,
    }
