"""Small model archives for tests, written where a test wants them."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Answers each row with what it got.
ECHO = """
def handle(data, context):
    if data is None:
        return None
    return [row.get("data") if isinstance(row, dict) else row for row in data]
"""

Files = dict[str, str | bytes]


def manifest(**model: Any) -> str:
    """MANIFEST.json of a model ``m`` with ``handler.py``; ``model`` overrides its members."""
    members = {"modelName": "m", "handler": "handler.py", "modelVersion": "1.0", **model}
    return json.dumps(
        {
            "createdOn": "21/11/2026 08:00:00",
            "runtime": "python",
            "model": {key: value for key, value in members.items() if value is not None},
            "archiverVersion": "0.12.0",
        }
    )


def make_archive(path: Path, files: Mapping[str, str | bytes], **model: Any) -> Path:
    """Write an archive: ``.mar`` or ``.tar.gz`` by the name's ending, else an unpacked folder.

    Args:
        path: what to write.
        files: contents by name; ``MAR-INF/MANIFEST.json`` is added unless it is there.
        model: members of the manifest's ``model``; None takes one out.
    """
    return write(path, {"MAR-INF/MANIFEST.json": manifest(**model), **files})


def write(path: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write ``files`` and nothing else, as `make_archive` does."""
    contents = {k: v.encode() if isinstance(v, str) else v for k, v in files.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".mar":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
    elif path.suffix in (".gz", ".tgz"):
        write_tar(path, {f"model/{name}": content for name, content in contents.items()})
    else:
        for name, content in contents.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return path


def write_tar(path: Path, contents: Mapping[str, bytes], *more: tarfile.TarInfo) -> Path:
    """Write a ``.tar.gz`` of files and, after them, entries without content."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in more:
            archive.addfile(info)
    return path
