"""An archive's model-config.yaml: read, with its known keys checked (CONTRACT 3.2)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from kserve_torch.archives.text import first_line, read_text
from kserve_torch.codec import signature
from kserve_torch.codec.document import kind_of
from kserve_torch.errors import InvalidArchive
from kserve_torch.settings.checks import Check, flag, mapping, one_of, whole
from kserve_torch.settings.limits import LIMITS
from kserve_torch.settings.spelling import near

log = logging.getLogger(__name__)

CONFIG_NAME = "model-config.yaml"

#: Most values in a configuration; aliases count each time they are used (alias bombs).
MAX_VALUES = 50_000


def read_yaml(root: Path, name: str) -> Mapping[str, Any]:
    """The parsed configuration file ``name`` of the archive at ``root``; empty if it is empty.

    Raises:
        InvalidArchive: the file is missing, is not YAML, or is not a mapping.
    """
    text = read_text(root, name)
    if text is None:
        raise InvalidArchive(f"{name}: named by the manifest, but not in the archive")
    try:
        parsed = yaml.safe_load(text)
    except Exception as error:  # PyYAML also raises Python's own, as KeyError for "!!bool x"
        raise InvalidArchive(f"{name}: not valid YAML: {_fault(error)}") from error
    if parsed is None:
        return MappingProxyType({})
    if not isinstance(parsed, dict):
        raise InvalidArchive(f"{name}: got {kind_of(parsed)}, a mapping is wanted")
    _refuse_alias_bomb(name, parsed)
    return MappingProxyType(parsed)


def _fault(error: BaseException) -> str:
    """What PyYAML says is wrong, with the line, counted from 1."""
    text = getattr(error, "problem", None) or first_line(error)
    mark = getattr(error, "problem_mark", None)
    return text if mark is None else f"{text} (line {mark.line + 1})"


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


def checked_config(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """``config`` without known keys that have a value of the wrong type; each gets a warning.

    Unknown keys stay: they are the handler's (CONTRACT 3.2). One that looks like a known key gets a
    warning.

    Args:
        config: the parsed file.
        name: of the model and its file, for the log.
    """
    good = {}
    for key, value in config.items():
        if guess := near(str(key), _KEYS):
            log.warning("%s: %s is left to the handler; did you mean %s?", name, key, guess)
        try:
            if key in _KEYS:
                _KEYS[key](value)
        except ValueError as error:
            log.warning("%s: %s: %r is not %s; ignored", name, key, value, error)
        else:
            good[key] = value
    if good.get("sequenceMaxIdleMSec"):  # alone, it was TorchServe 0.10's switch
        good.setdefault("sequenceBatching", True)
    return MappingProxyType(good)


def _signature(value: Any) -> Any:
    if not signature.is_signature(value):
        raise ValueError(signature.ALLOWED)
    return value


_KEYS: Mapping[str, Check] = {
    **{key: check for key, (_, check) in LIMITS.items()},
    **dict.fromkeys(
        (
            "parallelLevel",
            "sequenceMaxIdleMSec",
            "sequenceTimeoutMSec",
            "maxSequenceJobQueueSize",
            "maxNumSequence",
        ),
        whole(0),
    ),
    **dict.fromkeys(
        (
            "useJobTicket",
            "continuousBatching",
            "sequenceBatching",
            "asyncCommunication",
            "useVenv",
        ),
        flag,
    ),
    "parallelType": one_of("pp", "tp", "pptp", "custom"),
    "torchrun": mapping,
    "signature": _signature,
}
