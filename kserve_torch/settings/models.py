"""Which models to load at start and the limits of each: ``load_models``, ``models``, snapshots.

The precedence of one model's limits, first wins::

    model_snapshot, models  >  the archive's model-config.yaml  >  default_* keys  >  defaults
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kserve_torch.settings.kinds import Kind, Malformed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one version of a model may use. Times are in seconds.

    Attributes:
        max_batch_delay: longest wait for a batch to fill, from its first row.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupModel:
    """A model to load at start.

    Attributes:
        name: to register under, or None for the archive's own.
        file: name in the model store or a URL; a path for a folder that is one model itself.
        version: as the setting says, or None; the archive's manifest decides (CONTRACT F4).
    """

    name: str | None
    file: str | Path
    version: str | None = None
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One version in ``models`` or ``model_snapshot``: what to load, and its limits."""

    model: StartupModel
    limits: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


Entries = tuple[Entry, ...]


# --- one limit ------------------------------------------------------------------------------------


def _whole(low: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"a whole number from {low} up")
        return value

    return check


def _scaled(factor: float) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
            raise ValueError("a number from 0 up")
        return float(value) * factor

    return check


def _time_limit(value: Any) -> float:
    seconds = _scaled(1)(value)
    if not seconds:
        raise ValueError("a number of seconds above 0")
    return seconds


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return str(value)

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of device numbers")
    return tuple(_whole(0)(item) for item in value)


#: Key of model-config.yaml (CONTRACT 3.2) -> field of `Limits` and check.
_LIMITS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "minWorkers": ("min_workers", _whole(1)),
    "maxWorkers": ("max_workers", _whole(0)),
    "batchSize": ("batch_size", _whole(1)),
    "maxBatchDelay": ("max_batch_delay", _scaled(0.001)),
    "responseTimeout": ("response_timeout", _time_limit),
    "startupTimeout": ("startup_timeout", _time_limit),
    "jobQueueSize": ("queue_size", _whole(1)),
    "clientTimeoutInMills": ("client_timeout", lambda value: _scaled(0.001)(value) or None),
    "maxRetryTimeoutInSec": ("max_retry_timeout", _scaled(1)),
    "deviceType": ("device_type", _one_of("cpu", "gpu")),
    "deviceIds": ("device_ids", _ids),
    "v2_rows": ("v2_rows", _one_of("tensor", "batch")),
    "v2_flatten": ("v2_flatten", _flag),
    "v2_grpc_bytes": ("v2_grpc_bytes", _one_of("raw", "b64")),
}

#: Keys of model-config.yaml that are limits.
LIMIT_KEYS = tuple(_LIMITS)


#: Fields of `Limits` that are seconds, and written in milliseconds.
_IN_MILLISECONDS = ("max_batch_delay", "client_timeout")
_WORDS = {target: word for word, (target, _) in _LIMITS.items()}


def written(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Limits by the keys and in the units in which they are written."""
    return {
        _WORDS[name]: value * 1000 if name in _IN_MILLISECONDS and value is not None else value
        for name, value in limits.items()
    }


def merge(defaults: Limits, name: str, yaml: Mapping[str, Any], entry: Entry | None) -> Limits:
    """The limits of one version, by the precedence at the top of this file."""
    values = _checked_yaml(name, yaml)
    if entry is not None:
        values.update(entry.limits)
    limits = replace(defaults, **values)
    return replace(limits, max_workers=max(limits.min_workers, limits.max_workers))


def _checked_yaml(name: str, yaml: Mapping[str, Any]) -> dict[str, Any]:
    """A wrong value is a warning and keeps the default, as in TorchServe (CONTRACT 3.2)."""
    values = {}
    for word, (target, check) in _LIMITS.items():
        if word not in yaml:
            continue
        try:
            values[target] = check(yaml[word])
        except ValueError as error:
            logger.warning(
                "model %s: model-config.yaml: %s: %r is not %s; ignored",
                name,
                word,
                yaml[word],
                error,
            )
    return values


# --- models and model_snapshot --------------------------------------------------------------------


def _read_json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error}") from error
    return _mapping(value, "the whole")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{where} is not an object {{...}}")
    return value


def _read_models(text: str) -> Entries:
    return _entries(_read_json(text), required=())


def _read_snapshot(text: str) -> Entries:
    models = _read_json(text).get("models")
    required = ("marName", "minWorkers", "maxWorkers", "batchSize", "maxBatchDelay")
    return _entries(
        _mapping(models, "models"),
        required=(*required, "defaultVersion"),
        zeros=("maxBatchDelay",),
    )


def _entries(
    models: Mapping[str, Any], required: tuple[str, ...], zeros: tuple[str, ...] = ()
) -> Entries:
    return tuple(
        _entry(name, version, _mapping(details, f"{name}.{version}"), required, zeros)
        for name, versions in models.items()
        for version, details in _mapping(versions, name).items()
    )


def _entry(
    name: str,
    version: str,
    details: dict[str, Any],
    required: tuple[str, ...],
    zeros: tuple[str, ...],
) -> Entry:
    where = f"{name}.{version}"
    if missing := [word for word in required if word not in details]:
        raise Malformed(f"{where}: {missing[0]} is missing")
    file = details.get("marName", f"{name}.mar")
    default = _unquoted(details.get("defaultVersion", False))
    if not isinstance(file, str) or not file:
        raise Malformed(f"{where}.marName: {file!r} is not a file name")
    if not isinstance(default, bool):
        raise Malformed(f"{where}.defaultVersion: {default!r} is not true or false")
    model = StartupModel(name=name, file=file, version=version, is_default=default)
    return Entry(model=model, limits=MappingProxyType(_limits_of(where, details, zeros)))


def _limits_of(where: str, details: Mapping[str, Any], zeros: tuple[str, ...]) -> dict[str, Any]:
    """Numbers of 0 or less fall back to the next in line (CONTRACT F3), but for a 0 of ``zeros``.

    A snapshot's ``maxBatchDelay`` of 0 means what it says, no waiting; that of ``models`` does not.
    """
    values = {}
    for word, (target, check) in _LIMITS.items():
        value = _unquoted(details.get(word))
        if value is None or (_falls_back(value) and not (value == 0 and word in zeros)):
            continue
        try:
            values[target] = check(value)
        except ValueError as error:
            raise Malformed(f"{where}.{word}: {value!r} is not {error}") from error
    return values


def _unquoted(value: Any) -> Any:
    """Numbers and truth values in quotes are what they say, as where TorchServe reads JSON."""
    try:
        return json.loads(value.lower()) if isinstance(value, str) else value
    except ValueError:
        return value


def _falls_back(value: Any) -> bool:
    return isinstance(value, int | float) and value <= 0 and value is not False


MODELS = Kind(_read_models, "JSON {name: {version: {minWorkers, ...}}}", "JSON")
SNAPSHOT = Kind(_read_snapshot, "JSON {models: {name: {version: {marName, ...}}}}", "JSON")


# --- load_models ----------------------------------------------------------------------------------


def _read_load_models(text: str) -> str | tuple[StartupModel, ...]:
    if text.lower() in ("all", "none"):
        return text.lower()
    named = (_named(part.strip()) for part in text.split(",") if part.strip())
    return tuple(dict.fromkeys(named))  # to name a model twice is to name it


def _named(text: str) -> StartupModel:
    name, equals, file = text.partition("=")
    if not equals or "://" in name:  # an "=" inside a URL's query names nothing
        name, file = "", text
    if not file:
        raise ValueError
    return StartupModel(name=name or None, file=file)


LOAD_MODELS = Kind(_read_load_models, "all, none or [NAME=]FILE,...", "[NAME=]FILE")
