"""MAR-INF/MANIFEST.json: what an archive says about itself, read into checked values.

It is untrusted input: size, nesting, types and file references are checked here once, so that the
rest of the package reads plain fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from kserve_torch.archives.text import first_line, read_text
from kserve_torch.codec.document import is_sendable, kind_of
from kserve_torch.errors import InvalidArchive

MANIFEST_PATH = "MAR-INF/MANIFEST.json"
DEFAULT_VERSION = "1.0"
RUNTIMES = ("python", "python3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """MAR-INF/MANIFEST.json (CONTRACT A1, A4, A6).

    Attributes:
        model_name: name that the archiver was given, or None.
        version: the model's version.
        handler: ``module``, ``module.py`` or ``module:function``, as written.
        model_file: the model's Python file, relative to the archive, or None.
        serialized_file: the weights, relative to the archive, or None.
        requirements_file: lists the packages that the model needs, or None.
        config_file: the model-config.yaml, or None.
        runtime: one of `RUNTIMES`.
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
    text = read_text(root, MANIFEST_PATH)
    if text is None:
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArchive(f"{MANIFEST_PATH}: not valid JSON: {first_line(error)}") from error
    if not isinstance(parsed, dict):
        raise InvalidArchive(f"{MANIFEST_PATH}: got {kind_of(parsed)}, a JSON object is wanted")
    return parsed


def parse_manifest(raw: Mapping[str, Any], handler: str | None = None) -> Manifest:
    """Check a parsed manifest.

    Args:
        raw: the JSON object; unknown keys are ignored.
        handler: overrides the manifest's own handler.

    Raises:
        InvalidArchive: a member is missing, of the wrong type, or names a file outside the archive.
    """
    model = raw.get("model")
    if not isinstance(model, dict):
        raise InvalidArchive(f"{MANIFEST_PATH}: model: got {kind_of(model)}, an object is wanted")
    entry = handler or _text(model, "handler")
    if entry is None:
        raise InvalidArchive(f"{MANIFEST_PATH}: model.handler is missing")
    entry = _own(entry)
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


# --- checks ---------------------------------------------------------------------------------------


def _text(model: Mapping[str, Any], key: str) -> str | None:
    """A text member; a number becomes text, as in TorchServe's reader; "" counts as absent."""
    value = model.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if value is not None and not isinstance(value, str):
        raise InvalidArchive(f"{MANIFEST_PATH}: model.{key}: got {kind_of(value)}, text is wanted")
    if value and not is_sendable(value):
        raise InvalidArchive(f"{MANIFEST_PATH}: model.{key}: holds a lone surrogate")
    return value or None


def _file(model: Mapping[str, Any], key: str) -> str | None:
    value = _text(model, key)
    if value is not None:
        _inside(key, value)
    return value


def _own(handler: str) -> str:
    """The handler in the archive: TorchServe drops the folder of a path on the packer's machine."""
    name, colon, attribute = handler.partition(":")
    return PurePosixPath(name).name + colon + attribute if _leads_out(name) else handler


def _leads_out(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts


def _inside(key: str, name: str) -> None:
    if not name or "\0" in name or _leads_out(name):
        raise InvalidArchive(f"{MANIFEST_PATH}: model.{key}: {name!r} is not a file of the archive")


def _runtime(raw: Mapping[str, Any]) -> str:
    runtime = raw.get("runtime", "python")
    if runtime not in RUNTIMES:
        wanted = " or ".join(RUNTIMES)
        raise InvalidArchive(f"{MANIFEST_PATH}: runtime: got {runtime!r}, {wanted} is wanted")
    return str(runtime)
