"""What one version of a model may use: workers, rows, seconds.

The precedence of each limit, first wins::

    model_snapshot, models  >  the archive's model-config.yaml  >  default_* keys  >  defaults
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kserve_torch.settings.checks import Check, flag, one_of, scaled, whole

#: Most workers that one version may be asked to start: each is a thread with a handler instance.
MOST_WORKERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one version of a model may use. Times are in seconds.

    Attributes:
        max_batch_delay: longest wait for a batch to fill, from its first request on.
        queue_size: requests that may wait.
        client_timeout: from arrival to answer, or None for no limit.
        max_retry_timeout: how long failed workers are started again.
        device_type: ``cpu``, ``gpu`` or None for a GPU if there is one.
        device_ids: GPUs to use in turn; empty for all.
        v2_rows: ``tensor``: each v2 input is a row; ``batch``: each element of its first dimension.
        v2_flatten: v2 outputs are flattened to shape [n], as TorchServe sends them.
        v2_grpc_bytes: what handlers get of BYTES over gRPC: ``raw`` or ``b64``.
    """

    min_workers: int = 1
    max_workers: int = 1
    batch_size: int = 1
    max_batch_delay: float = 0.1
    response_timeout: float = 120.0
    startup_timeout: float = 120.0
    queue_size: int = 100
    client_timeout: float | None = None
    max_retry_timeout: float = 300.0
    device_type: str | None = None
    device_ids: tuple[int, ...] = ()
    v2_rows: str = "tensor"
    v2_flatten: bool = False
    v2_grpc_bytes: str = "raw"


def _time_limit(value: Any) -> float:
    seconds = scaled(1)(value)
    if not seconds:
        raise ValueError("a number of seconds > 0")
    return seconds


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of device numbers")
    return tuple(whole(0)(item) for item in value)


#: Key of model-config.yaml (CONTRACT 3.2) -> field of `Limits` and check.
LIMITS: Mapping[str, tuple[str, Check]] = {
    "minWorkers": ("min_workers", whole(1, MOST_WORKERS)),
    "maxWorkers": ("max_workers", whole(0)),
    "batchSize": ("batch_size", whole(1)),
    "maxBatchDelay": ("max_batch_delay", scaled(0.001)),
    "responseTimeout": ("response_timeout", _time_limit),
    "startupTimeout": ("startup_timeout", _time_limit),
    "jobQueueSize": ("queue_size", whole(1)),
    "clientTimeoutInMills": ("client_timeout", lambda value: scaled(0.001)(value) or None),
    "maxRetryTimeoutInSec": ("max_retry_timeout", scaled(1)),
    "deviceType": ("device_type", one_of("cpu", "gpu")),
    "deviceIds": ("device_ids", _ids),
    "v2_rows": ("v2_rows", one_of("tensor", "batch")),
    "v2_flatten": ("v2_flatten", flag),
    "v2_grpc_bytes": ("v2_grpc_bytes", one_of("raw", "b64")),
}

#: Fields of `Limits` that are written in milliseconds.
_IN_MILLISECONDS = ("max_batch_delay", "client_timeout")
_WORDS = {target: word for word, (target, _) in LIMITS.items()}


def written(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Limits by the keys of model-config.yaml and in its units."""
    return {
        _WORDS[name]: value * 1000 if name in _IN_MILLISECONDS else value
        for name, value in limits.items()
    }


def merge(
    defaults: Limits, config: Mapping[str, Any], given: Mapping[str, Any], gpus: int = 0
) -> Limits:
    """The limits of one version, by the precedence at the top of this file.

    Args:
        defaults: for limits that nobody set.
        config: its archive's model-config.yaml, checked.
        given: what ``models`` or a snapshot says, by the fields of `Limits`.
        gpus: how many there are; a model for which nobody says how many workers it has gets one on
            each that it may use.
    """
    own = {name: check(config[word]) for word, (name, check) in LIMITS.items() if word in config}
    own |= given
    if gpus and own.get("device_type") != "cpu" and not own.get("max_workers"):
        defaults = replace(defaults, min_workers=len(own.get("device_ids", ())) or gpus)
    limits = replace(defaults, **own)
    return replace(limits, max_workers=max(limits.min_workers, limits.max_workers))
