"""Which models to load at start: ``load_models``, ``models``, ``model_snapshot``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from kserve_torch.settings.kinds import Kind, Malformed
from kserve_torch.settings.limits import LIMITS
from kserve_torch.settings.spelling import near, with_guess


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
    """One version in ``models`` or ``model_snapshot``.

    Attributes:
        model: what to load.
        limits: fields of `Limits`.
        misspelt: its words that look like known ones, with a guess at what was meant.
    """

    model: StartupModel
    limits: Mapping[str, Any]
    misspelt: tuple[str, ...]


Entries = tuple[Entry, ...]

#: What is read of a version; TorchServe's snapshots have more.
_WORDS = (*LIMITS, "defaultVersion", "marName")

#: Characters of a wrong value that are shown.
_SHOWN = 40


# --- models and model_snapshot --------------------------------------------------------------------


def _read_json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        value = _read_quotes(text)
        if value is None:
            raise Malformed(f"not JSON: {_fault(error)}") from error
    except RecursionError as error:
        raise Malformed("nested too deeply") from error
    return _mapping(value, "the whole")


def _fault(error: json.JSONDecodeError) -> str:
    """What is wrong, and where, in words: a file's lines are joined, so their numbers are lost."""
    rest = error.doc[error.pos :].strip()
    if rest:
        return f"{error.msg}: {rest[:_SHOWN]!r}"
    return f"it ends after {error.doc.strip()[-_SHOWN:]!r}; does that line lack a backslash?"


def _read_quotes(text: str) -> Any:
    """JSON with single quotes or none, which TorchServe reads, too; None if it is not that.

    All values in it are strings; see `_unquoted`.
    """
    try:
        value = yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    return value if text.startswith("{") else None


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{where} is not an object {{...}}")
    return value


def _read_models(text: str) -> Entries:
    return _entries(_read_json(text))


def _read_snapshot(text: str) -> Entries:
    models = _read_json(text).get("models")
    return _entries(_mapping(models, "models"), zeros=("maxBatchDelay",))


def _entries(models: Mapping[str, Any], zeros: tuple[str, ...] = ()) -> Entries:
    return tuple(
        _entry(name, version, _mapping(details, f"{name}.{version}"), zeros)
        for name, versions in models.items()
        for version, details in _mapping(versions, name).items()
    )


def _entry(name: str, version: str, details: dict[str, Any], zeros: tuple[str, ...]) -> Entry:
    where = f"{name}.{version}"
    file = details.get("marName", f"{name}.mar")
    default = _unquoted(details.get("defaultVersion", False))
    if not isinstance(file, str) or not file:
        raise Malformed(f"{where}.marName: {file!r} is not a file name")
    if not isinstance(default, bool):
        raise Malformed(f"{where}.defaultVersion: {default!r} is not true or false")
    model = StartupModel(name=name, file=file, version=version, is_default=default)
    return Entry(
        model=model,
        limits=MappingProxyType(_limits_of(where, details, zeros)),
        misspelt=tuple(
            f"{where}.{with_guess(word, _WORDS)}" for word in details if near(word, _WORDS)
        ),
    )


def _limits_of(where: str, details: Mapping[str, Any], zeros: tuple[str, ...]) -> dict[str, Any]:
    """Numbers of 0 or less fall back to the next source (CONTRACT F3), except a 0 of ``zeros``.

    A snapshot's ``maxBatchDelay`` of 0 means no waiting; in ``models`` it falls back.
    """
    values = {}
    for word, (target, check) in LIMITS.items():
        value = _unquoted(details.get(word))
        if value is None or (_falls_back(value) and not (value == 0 and word in zeros)):
            continue
        try:
            values[target] = check(value)
        except ValueError as error:
            raise Malformed(f"{where}.{word}: {value!r} is not {error}") from error
    return values


def _unquoted(value: Any) -> Any:
    """Numbers and booleans may be in quotes, as in the JSON that TorchServe reads."""
    try:
        return json.loads(value.lower()) if isinstance(value, str) else value
    except (ValueError, RecursionError):
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
    return tuple(dict.fromkeys(named))  # a model may be named twice


def _named(text: str) -> StartupModel:
    name, equals, file = text.partition("=")
    if not equals or "://" in name:  # an "=" inside a URL's query names nothing
        name, file = "", text
    if not file:
        raise ValueError
    return StartupModel(name=name or None, file=file)


LOAD_MODELS = Kind(_read_load_models, "all, none or [NAME=]FILE,...", "[NAME=]FILE")
