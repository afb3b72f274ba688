"""A model archive, opened: where its files are, what its manifest says, what it is called.

Four forms are read: ``.mar`` (zip), ``.tar.gz``, an unpacked archive and a bare folder. Packed ones
are unpacked below the work folder; folders are served in place and never written to.
"""

from __future__ import annotations

import linecache
import logging
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kserve_torch.archives.extract import blamed, extract
from kserve_torch.archives.manifest import (
    CONFIG_NAME,
    DEFAULT_VERSION,
    MANIFEST_PATH,
    Manifest,
    checked_config,
    parse_manifest,
    read_manifest,
    read_yaml,
)
from kserve_torch.errors import InvalidArchive, LoadFailed, ModelNotFound
from kserve_torch.messages import NOTHING

log = logging.getLogger(__name__)

Layout = Literal["kserve", "store", "archive", "bare"]

#: Names that a store's packed archives end with (CONTRACT A3).
PACKED = (".mar", ".model", ".tar.gz", ".tgz")

#: Weights that a bare folder may hold.
WEIGHTS = frozenset((".pt", ".pth", ".pt2", ".onnx", ".so", ".safetensors", ".bin"))

_NAME = re.compile(r"\w[\w\-.]*", re.ASCII)

#: What KServe's agent leaves in the folder of each TrainedModel that it has downloaded.
_AGENTS_MARK = re.compile(r"SUCCESS\.[0-9a-f]{64}")

#: By the ending of weights that bring their own model.
_PLATFORMS = {"onnx": "onnx_onnxv1", "pt2": "pytorch_export", "pt": "pytorch_torchscript"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One opened archive.

    Attributes:
        name: the model's name (CONTRACT A5).
        root: the folder that its files are read from.
        manifest: its manifest; a bare folder's is made up.
        config: model-config.yaml, without known keys of the wrong type; empty if there is none.
        yaml: model-config.yaml as it is written, which handlers see.
        source: the file or folder that was opened.
        url: the source as a registration call names it.
        extracted: the folder that `close_archive` removes; None if it is served in place.
    """

    name: str
    root: Path
    manifest: Manifest
    config: Mapping[str, Any]
    yaml: Mapping[str, Any]
    source: Path
    url: str
    extracted: Path | None = None

    @property
    def platform(self) -> str:
        """``project_format`` of the model, as metadata names it (CONTRACT O12)."""
        weights = "" if self.manifest.model_file else self.manifest.serialized_file or ""
        return _PLATFORMS.get(weights.rpartition(".")[2], "pytorch_eager")


def open_archive(
    source: Path,
    workdir: Path,
    *,
    name: str | None = None,
    handler: str | None = None,
    default_handler: str | None = None,
) -> Archive:
    """Open the archive ``source``.

    Args:
        source: a ``.mar``, a ``.tar.gz``, an unpacked archive or a bare folder.
        workdir: packed archives are unpacked to a fresh folder below it.
        name: goes before the archive's own name (CONTRACT A5).
        handler: goes before the manifest's handler.
        default_handler: the handler of an archive that brings neither manifest nor handler file.

    Raises:
        ModelNotFound: there is no such file.
        InvalidArchive: damaged, hostile or incomplete; the message is the one reason.
        LoadFailed: the disk is full, or too many files are open.
    """
    source = source.absolute()  # workers' threads have directories of their own
    if not source.exists():
        raise ModelNotFound(f"Model not found at: {source.name}")
    source = _packed_inside(source) or source
    extracted = None if source.is_dir() else _unpack(source, workdir)
    try:
        root = _descend(extracted or source)
        manifest, bare = _manifest(root, handler, default_handler)
        yaml = read_yaml(root, manifest.config_file) if manifest.config_file else NOTHING
        return Archive(
            name=_name(source, name or manifest.model_name, keep=bare and extracted is None),
            root=root,
            manifest=manifest,
            config=checked_config(yaml, manifest.config_file or CONFIG_NAME),
            yaml=yaml,
            source=source,
            url=source.name,
            extracted=extracted,
        )
    except BaseException as error:
        if extracted is not None:
            shutil.rmtree(extracted, ignore_errors=True)
        if isinstance(error, OSError):
            raise blamed(error)(f"{source.name}: {error.strerror}") from error
        raise


def close_archive(archive: Archive) -> None:
    """Remove what was unpacked; a folder served in place stays as it is."""
    if archive.extracted is not None:
        shutil.rmtree(archive.extracted, ignore_errors=True)
    # Tracebacks keep the text of the files that they show, also of one that failed to load. A copy
    # first: other threads add to it.
    for name in [name for name in list(linecache.cache) if name.startswith(str(archive.root))]:
        linecache.cache.pop(name, None)


def find_archives(store: Path) -> list[Path]:
    """The archives of a model store, by name: packed files and folders that hold an archive.

    Raises:
        OSError: the store cannot be read; what in it cannot be, such as a volume's
            ``lost+found``, is passed over.
    """
    return sorted((path for path in _visible(store) if _found(path)), key=lambda path: path.name)


def named_by_folder(path: Path) -> bool:
    """Whether a folder of a model store says what its model is called (CONTRACT O83, Q14).

    KServe's agent names folders after TrainedModels, and has them loaded by these names; one that
    holds an archive as a file can be of no other origin. Unpacked archives name themselves.
    """
    if not path.is_dir() or not _NAME.fullmatch(path.name):
        return False
    marked = any(_AGENTS_MARK.fullmatch(each.name) for each in path.iterdir())
    return marked or _packed_inside(path) is not None


def layout_of(model_dir: Path) -> Layout:
    """Which of the four layouts ``--model_dir`` has (INTERFACE, "Start")."""
    if (model_dir / "config" / "config.properties").is_file() or (
        model_dir / "model-store"
    ).is_dir():
        return "kserve"
    if (model_dir / MANIFEST_PATH).is_file():
        return "archive"
    packed = any(path.name.endswith(PACKED) for path in _visible(model_dir))
    return "bare" if _python_files(model_dir) and not packed else "store"


def _found(path: Path) -> bool:
    try:
        return _is_archive(path)
    except OSError as error:
        log.warning("%s: %s; it is passed over", path.name, error.strerror)
        return False


def _is_archive(path: Path) -> bool:
    if not path.is_dir():
        return path.is_file() and path.name.endswith(PACKED)
    root = _descend(path)
    if _packed_inside(root) is not None:
        return True
    return (root / MANIFEST_PATH).is_file() or bool(_python_files(root))


def _visible(folder: Path) -> Iterator[Path]:
    return (
        path
        for path in folder.iterdir()
        if not (path.name.startswith(".") or _AGENTS_MARK.fullmatch(path.name))
    )


def _descend(folder: Path) -> Path:
    """The folder itself, or the only one in it (CONTRACT A3: SageMaker's form, tar's prefix)."""
    while not (folder / MANIFEST_PATH).is_file():
        inside = list(_visible(folder))
        if len(inside) != 1 or not inside[0].is_dir():
            break
        folder = inside[0]
    return folder


def _packed_inside(folder: Path) -> Path | None:
    """The one archive file in a folder with nothing else, as KServe's agent leaves them (Q14)."""
    inside = list(_visible(folder)) if folder.is_dir() else []
    alone = len(inside) == 1 and inside[0].is_file() and inside[0].name.endswith(PACKED)
    return inside[0] if alone else None


def _unpack(source: Path, workdir: Path) -> Path:
    """Unpack ``source`` into a fresh folder; leaves nothing behind if that fails."""
    if not source.is_file():
        raise InvalidArchive(f"{source.name}: neither a file nor a folder")
    try:
        parent = workdir / "models"
        parent.mkdir(parents=True, exist_ok=True)
        target = Path(tempfile.mkdtemp(dir=parent))
    except OSError as error:
        raise LoadFailed(f"the work folder cannot be written to: {error.strerror}") from error
    try:
        extract(source, target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _manifest(
    root: Path, handler: str | None, default_handler: str | None
) -> tuple[Manifest, bool]:
    """The manifest, and whether it had to be made up."""
    raw = read_manifest(root)
    if raw is not None:
        return parse_manifest(raw, handler), False
    return parse_manifest(_made_up_manifest(root, handler, default_handler)), True


def _name(source: Path, given: str | None, *, keep: bool) -> str:
    """The name given, or one made from the file's (CONTRACT A5); a bare folder's name is kept."""
    if given is None and not (keep and _NAME.fullmatch(source.name)):
        stem = source.name if source.is_dir() else source.name.removesuffix(".tar.gz")
        stem = stem.rpartition(".")[0] or stem
        return re.sub(r"\W|^_", "_", stem, flags=re.ASCII)
    name = given or source.name
    if not _NAME.fullmatch(name):
        raise InvalidArchive(
            f"the model name {name!r} may hold letters, digits, '_', '-' and '.' only"
        )
    return name


# --- bare folders ---------------------------------------------------------------------------------


def _made_up_manifest(
    root: Path, handler: str | None, default_handler: str | None
) -> dict[str, Any]:
    """The manifest that the archiver would write for a folder without one (CONTRACT A6)."""
    files = _python_files(root)
    entry = handler or _handler_file(files) or default_handler
    if entry is None:
        raise InvalidArchive(
            f"without {MANIFEST_PATH} one Python file named like handler.py is wanted, "
            f"got {', '.join(files) or 'none'}"
        )
    weights = sorted(path.name for path in _visible(root) if path.suffix in WEIGHTS)
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


def _python_files(folder: Path) -> list[str]:
    return sorted(path.name for path in _visible(folder) if path.suffix == ".py" and path.is_file())


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
