"""What a folder holds: archives, as a model store does, or the files of one archive.

Hidden files and what KServe's agent and macOS leave behind do not count. New folders are made here,
too.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kserve_torch.archives.manifest import MANIFEST_PATH
from kserve_torch.errors import LoadFailed

log = logging.getLogger(__name__)

#: File endings of packed archives (CONTRACT A3).
PACKED = (".mar", ".model", ".tar.gz", ".tgz")

#: File endings of weights, of which a bare folder may have one.
WEIGHTS = frozenset((".pt", ".pth", ".pt2", ".onnx", ".so", ".safetensors", ".bin"))

#: What a handler's code has, and that of other files of a project, such as its tests, lacks.
_HANDLES = re.compile(r"\bhandle\b|Handler\b")

#: What a model may be called.
MODEL_NAME = re.compile(r"\w[\w\-.]*", re.ASCII)

#: How many characters of an archive's file name are in the name of its folder.
_SHOWN = 50

#: What KServe's agent leaves in the folder of each TrainedModel that it has downloaded.
_AGENTS_MARK = re.compile(r"SUCCESS\.[0-9a-f]{64}")

#: The folder that macOS adds to the zip files it makes.
_OF_MACOS = "__MACOSX"


def find_archives(store: Path) -> list[Path]:
    """The archives of a model store, by name: packed files and folders that hold an archive.

    Raises:
        OSError: the store cannot be read; entries that cannot be, such as a volume's
            ``lost+found``, are skipped.
    """
    return sorted(path for path in visible(store) if _found(path))


def named_by_folder(path: Path) -> bool:
    """Whether a model has the name of its folder in the model store (CONTRACT O83, Q14).

    KServe's agent names folders after TrainedModels, and loads models by these names; only the
    agent makes folders that hold an archive as a file. Unpacked archives name themselves.
    """
    if not path.is_dir() or not MODEL_NAME.fullmatch(path.name):
        return False
    marked = any(_AGENTS_MARK.fullmatch(each.name) for each in path.iterdir())
    return marked or packed_inside(path) is not None


def is_one_model(folder: Path) -> bool:
    """Whether a folder is one model itself, unpacked or bare, and no store (INTERFACE, Start)."""
    if (folder / MANIFEST_PATH).is_file():
        return True
    packed = any(path.name.endswith(PACKED) for path in visible(folder))
    return not packed and bool(python_files(folder))


def _found(path: Path) -> bool:
    try:
        return _is_archive(path)
    except OSError as error:
        log.warning("%s: %s; skipped", path.name, error.strerror)
        return False


def _is_archive(path: Path) -> bool:
    if not path.is_dir():
        # A link that leads nowhere is an archive that is missing, and the model fails to load.
        return path.name.endswith(PACKED) and (path.is_file() or path.is_symlink())
    root = descend(path)
    if packed_inside(root) is not None:
        return True
    return (root / MANIFEST_PATH).is_file() or _is_bare_model(root)


def _is_bare_model(folder: Path) -> bool:
    """Whether Python files are a model's; what people keep beside their archives is skipped."""
    files = python_files(folder)
    if not files:
        return False
    weights = any(path.suffix in WEIGHTS for path in visible(folder))
    if weights or any(_handles(folder / name) for name in files):
        return True
    log.warning("%s: no handler and no weights beside its Python files; skipped", folder.name)
    return False


def _handles(file: Path) -> bool:
    try:
        return _HANDLES.search(file.read_text("utf-8", "replace")) is not None
    except OSError:  # the model fails to load, and says why
        return True


def visible(folder: Path) -> Iterator[Path]:
    """The entries of a folder that count."""
    return (
        path
        for path in folder.iterdir()
        if not path.name.startswith(".")
        and path.name != _OF_MACOS
        and not _AGENTS_MARK.fullmatch(path.name)
    )


def python_files(folder: Path) -> list[str]:
    """Names of the Python files in a folder, sorted."""
    return sorted(path.name for path in visible(folder) if path.suffix == ".py" and path.is_file())


def descend(folder: Path) -> Path:
    """The folder itself, or the only one in it (CONTRACT A3: SageMaker's layout, tar's prefix)."""
    while not (folder / MANIFEST_PATH).is_file():
        inside = list(visible(folder))
        if len(inside) != 1 or not inside[0].is_dir():
            break
        folder = inside[0]
    return folder


def packed_inside(folder: Path) -> Path | None:
    """The archive file that is all that a folder holds, as KServe's agent leaves it (Q14)."""
    inside = list(visible(folder)) if folder.is_dir() else []
    alone = len(inside) == 1 and inside[0].is_file() and inside[0].name.endswith(PACKED)
    return inside[0] if alone else None


def fresh_folder(parent: Path, archive: str = "") -> Path:
    """Make a folder for one archive within the work folder's ``parent``.

    Args:
        parent: made if it is not there.
        archive: its file name, with which the folder's begins: tracebacks then tell which of many
            ``handler.py`` they are about.

    Raises:
        LoadFailed: that cannot be written to.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # Not all of it: names have a limit, and a ":" would end a path of PYTHONPATH.
        prefix = re.sub(r"[^\w.-]", "_", archive[:_SHOWN], flags=re.ASCII)
        return Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=parent))
    except OSError as error:
        raise LoadFailed(f"the work folder cannot be written to: {error.strerror}") from error
