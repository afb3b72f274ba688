"""A bare folder, without a manifest: what each of its files is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kserve_torch.archives.config import CONFIG_NAME
from kserve_torch.archives.folders import WEIGHTS, python_files, visible
from kserve_torch.archives.manifest import DEFAULT_VERSION, MANIFEST_PATH
from kserve_torch.errors import InvalidArchive


def made_up_manifest(
    root: Path, handler: str | None, default_handler: str | None
) -> dict[str, Any]:
    """The manifest that the archiver would write for a folder without one (CONTRACT A6).

    Raises:
        InvalidArchive: several files could be the handler, the model or the weights.
    """
    files = python_files(root)
    entry = handler or _handler_file(files) or default_handler
    if entry is None:
        raise InvalidArchive(
            f"without {MANIFEST_PATH} one Python file named like handler.py is wanted, "
            f"got {', '.join(files) or 'none'}"
        )
    weights = sorted(path.name for path in visible(root) if path.suffix in WEIGHTS)
    if len(weights) > 1:
        raise InvalidArchive(
            f"without {MANIFEST_PATH} one weights file is allowed, got {', '.join(weights)}"
        )
    model = {
        "modelVersion": DEFAULT_VERSION,
        "handler": entry,
        "modelFile": _model_file([name for name in files if name != entry.partition(":")[0]]),
        "serializedFile": weights[0] if weights else None,
        "requirementsFile": _if_there(root, "requirements.txt"),
        "configFile": _if_there(root, CONFIG_NAME),
    }
    return {"runtime": "python", "model": {k: v for k, v in model.items() if v is not None}}


def _if_there(root: Path, name: str) -> str | None:
    return name if (root / name).is_file() else None


def _handler_file(files: list[str]) -> str | None:
    named = [name for name in files if "handler" in name or "service" in name]
    if len(named) == 1:
        return named[0]
    return files[0] if len(files) == 1 else None


def _model_file(files: list[str]) -> str | None:
    """Which of the Python files beside the handler defines the model."""
    if "model.py" in files:
        return "model.py"
    if len(files) > 1:
        raise InvalidArchive(
            f"without {MANIFEST_PATH} one model file is allowed beside the handler, "
            f"got {', '.join(files)}"
        )
    return files[0] if files else None
