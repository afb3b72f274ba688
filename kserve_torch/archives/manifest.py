"""What an archive says about itself: MANIFEST.json and model-config.yaml, read into checked values.

Both files are untrusted input: size, nesting, types and file references are checked here once, so
that the rest of the package reads plain fields.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import yaml

from kserve_torch.codec import signature
from kserve_torch.errors import InvalidArchive
from kserve_torch.settings.limits import LIMITS
from kserve_torch.settings.near import near

log = logging.getLogger(__name__)

MANIFEST_PATH = "MAR-INF/MANIFEST.json"
CONFIG_NAME = "model-config.yaml"
DEFAULT_VERSION = "1.0"

#: Largest file that is read as a manifest or configuration, in bytes; real ones have thousands.
MAX_TEXT = 256 * 1024

#: Most values in a configuration, aliases counted as often as they are used (alias bombs).
MAX_VALUES = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """MAR-INF/MANIFEST.json (CONTRACT A1, A4, A6).

    Attributes:
        model_name: name that the archiver was given, or None.
        version: the model's version.
        handler: ``module``, ``module.py`` or ``module:function``, as it is written.
        model_file: the model's Python file, relative to the archive, or None.
        serialized_file: the weights, relative to the archive, or None.
        requirements_file: the model's own packages, or None.
        config_file: the model-config.yaml, or None.
        runtime: ``python`` or ``python3``.
        raw: the parsed JSON, which handlers see as ``context.manifest``.
    """

    model_name: str | None
    version: str
    handler: str
    model_file: str | None
    serialized_file: str | None
    requirements_file: str | None
    config_file: str | None
    runtime: str
    raw: Mapping[str, Any]


def read_manifest(root: Path) -> dict[str, Any] | None:
    """The parsed manifest of the archive at ``root``, or None if it has none.

    Raises:
        InvalidArchive: it cannot be read, or is not a JSON object.
    """
    text = _read_text(root, MANIFEST_PATH)
    if text is None:
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArchive(f"{MANIFEST_PATH}: not valid JSON: {_first_line(error)}") from error
    if not isinstance(parsed, dict):
        raise InvalidArchive(f"{MANIFEST_PATH}: got {_kind(parsed)}, a JSON object is wanted")
    return parsed


def parse_manifest(raw: Mapping[str, Any], handler: str | None = None) -> Manifest:
    """Check a parsed manifest.

    Args:
        raw: the JSON object; keys that nobody knows are left alone.
        handler: goes before the manifest's own handler.

    Raises:
        InvalidArchive: a member is missing, of the wrong type, or names a file outside the archive.
    """
    model = raw.get("model")
    if not isinstance(model, dict):
        raise InvalidArchive(f"{MANIFEST_PATH}: model: got {_kind(model)}, an object is wanted")
    entry = handler or _text(model, "handler")
    if entry is None:
        raise InvalidArchive(f"{MANIFEST_PATH}: model.handler is missing")
    _inside("handler", entry.partition(":")[0])
    return Manifest(
        model_name=_text(model, "modelName"),
        version=_text(model, "modelVersion") or DEFAULT_VERSION,
        handler=entry,
        model_file=_file(model, "modelFile"),
        serialized_file=_file(model, "serializedFile"),
        requirements_file=_file(model, "requirementsFile"),
        config_file=_file(model, "configFile"),
        runtime=_runtime(raw),
        raw=MappingProxyType(dict(raw)),
    )


def read_yaml(root: Path, name: str) -> Mapping[str, Any]:
    """The parsed configuration file ``name`` of the archive at ``root``; empty if it is empty.

    Raises:
        InvalidArchive: the file is missing, is not YAML, or is not a mapping.
    """
    text = _read_text(root, name)
    if text is None:
        raise InvalidArchive(f"{name}: named by the manifest, but not in the archive")
    try:
        parsed = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidArchive(f"{name}: not valid YAML: {_fault(error)}") from error
    if parsed is None:
        return MappingProxyType({})
    if not isinstance(parsed, dict):
        raise InvalidArchive(f"{name}: got {_kind(parsed)}, a mapping is wanted")
    _refuse_alias_bomb(name, parsed)
    return MappingProxyType(parsed)


def checked_config(config: Mapping[str, Any], name: str = CONFIG_NAME) -> Mapping[str, Any]:
    """``config`` without the known keys whose value has the wrong type; each gets one warning.

    Unknown keys pass, they are the handler's (CONTRACT 3.2); one that looks like a known key gets a
    warning.
    """
    good = {}
    for key, value in config.items():
        rule = _KEYS.get(key)
        if guess := near(str(key), (*LIMITS, *_KEYS)):
            log.warning("%s: %s is left to the handler; did you mean %s?", name, key, guess)
        if rule is None or rule.allows(value):
            good[key] = value
        else:
            log.warning(
                "%s: %s: got %r, allowed is %s; the default stays", name, key, value, rule.allowed
            )
    return MappingProxyType(good)


# --- keys of model-config.yaml that are no limits; for those see settings/limits (CONTRACT 3.2) ---


@dataclass(frozen=True, slots=True)
class _Rule:
    allowed: str
    allows: Callable[[Any], bool]


def _whole(least: int) -> _Rule:
    return _Rule(f"a whole number from {least} on", lambda v: type(v) is int and v >= least)


def _one_of(*words: str) -> _Rule:
    return _Rule(" or ".join(words), lambda v: v in words)


_FLAG = _Rule("true or false", lambda v: isinstance(v, bool))
_MAPPING = _Rule("a mapping", lambda v: isinstance(v, dict))

_KEYS: Mapping[str, _Rule] = {
    **dict.fromkeys(
        (
            "parallelLevel",
            "sequenceMaxIdleMSec",
            "sequenceTimeoutMSec",
            "maxSequenceJobQueueSize",
            "maxNumSequence",
        ),
        _whole(0),
    ),
    **dict.fromkeys(
        (
            "useJobTicket",
            "continuousBatching",
            "sequenceBatching",
            "asyncCommunication",
            "useVenv",
        ),
        _FLAG,
    ),
    "parallelType": _one_of("pp", "tp", "pptp", "custom"),
    "torchrun": _MAPPING,
    "signature": _Rule(signature.ALLOWED, signature.is_signature),
}


# --- checks ---------------------------------------------------------------------------------------


def _read_text(root: Path, name: str) -> str | None:
    path = root / name
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_TEXT:
            raise InvalidArchive(f"{name}: larger than {MAX_TEXT} bytes")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArchive(f"{name}: not UTF-8 text") from error
    except OSError as error:
        raise InvalidArchive(f"{name}: {error.strerror}") from error


def _text(model: Mapping[str, Any], key: str) -> str | None:
    """A text member; a number counts as its text, as in TorchServe's reader; "" is no value."""
    value = model.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise InvalidArchive(f"{MANIFEST_PATH}: model.{key}: got {_kind(value)}, text is wanted")
    return value or None


def _file(model: Mapping[str, Any], key: str) -> str | None:
    value = _text(model, key)
    if value is not None:
        _inside(key, value)
    return value


def _inside(key: str, name: str) -> None:
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts:
        raise InvalidArchive(f"{MANIFEST_PATH}: model.{key}: {name!r} is not a file of the archive")


def _runtime(raw: Mapping[str, Any]) -> str:
    runtime = raw.get("runtime", "python")
    if runtime not in ("python", "python3"):
        raise InvalidArchive(
            f"{MANIFEST_PATH}: runtime: got {runtime!r}, python or python3 is wanted"
        )
    return str(runtime)


def _refuse_alias_bomb(name: str, config: dict[str, Any]) -> None:
    waiting: list[Any] = [config]
    for _ in range(MAX_VALUES):
        if not waiting:
            return
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    raise InvalidArchive(f"{name}: more than {MAX_VALUES} values")


def _fault(error: BaseException) -> str:
    """What a reader of YAML says, with the line as editors count."""
    text = getattr(error, "problem", None) or _first_line(error)
    mark = getattr(error, "problem_mark", None)
    return text if mark is None else f"{text} (line {mark.line + 1})"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "nothing" if value is None else names.get(type(value), f"a {type(value).__name__}")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
