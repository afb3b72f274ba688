"""A model archive, opened: where its files are, what its manifest says, what it is called.

It may be a ``.mar`` (zip), a ``.tar.gz``, an unpacked archive or a bare folder. Packed ones are
unpacked below the work folder; folders are served in place and never written to.
"""

from __future__ import annotations

import linecache
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kserve_torch.archives.bare import made_up_manifest
from kserve_torch.archives.config import CONFIG_NAME, checked_config, read_yaml
from kserve_torch.archives.extract import blamed, extract
from kserve_torch.archives.folders import MODEL_NAME, descend, fresh_folder, packed_inside
from kserve_torch.archives.manifest import Manifest, parse_manifest, read_manifest
from kserve_torch.errors import InvalidArchive, ModelNotFound
from kserve_torch.messages import NOTHING

log = logging.getLogger(__name__)

#: By the file ending of weights that contain their model.
_PLATFORMS = {"onnx": "onnx_onnxv1", "pt2": "pytorch_export", "pt": "pytorch_torchscript"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One opened archive.

    Attributes:
        name: the model's name (CONTRACT A5).
        root: the folder that its files are read from.
        manifest: its manifest; a bare folder's is made up.
        config: model-config.yaml, without known keys of the wrong type; empty if there is none.
        yaml: model-config.yaml as written, for handlers.
        source: the file or folder that was opened.
        extracted: the folder that `close_archive` removes; None if it is served in place.
    """

    name: str
    root: Path
    manifest: Manifest
    config: Mapping[str, Any]
    yaml: Mapping[str, Any]
    source: Path
    extracted: Path | None

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
        name: overrides the archive's own name (CONTRACT A5).
        handler: overrides the manifest's handler.
        default_handler: for an archive with neither manifest nor handler file.

    Raises:
        ModelNotFound: there is no such file.
        InvalidArchive: damaged, hostile or incomplete; the message is the reason.
        LoadFailed: the disk is full, or too many files are open.
    """
    source = source.absolute()  # workers' threads have working directories of their own
    extracted = None
    try:
        source = _found(source)
        if not source.is_dir():
            extracted = fresh_folder(workdir / "models", source.name)
            extract(source, extracted)
        return _read(source, extracted, name, handler, default_handler)
    except BaseException as error:
        if extracted is not None:
            shutil.rmtree(extracted, ignore_errors=True)
        if isinstance(error, OSError):
            raise blamed(error)(f"{source.name}: {error.strerror}") from error
        raise


def _found(source: Path) -> Path:
    """The file or folder at ``source``, or the file that is all that the folder holds."""
    if not source.exists():
        raise ModelNotFound(f"Model not found at: {source.name}")
    source = packed_inside(source) or source
    if not source.is_dir() and not source.is_file():
        raise InvalidArchive(f"{source.name}: neither a file nor a folder")
    return source


def _read(
    source: Path,
    extracted: Path | None,
    name: str | None,
    handler: str | None,
    default_handler: str | None,
) -> Archive:
    root = descend(extracted or source)
    written = read_manifest(root)
    raw = made_up_manifest(root, handler, default_handler) if written is None else written
    manifest = parse_manifest(raw, handler)
    yaml = read_yaml(root, manifest.config_file) if manifest.config_file else NOTHING
    if manifest.config_file is None and (root / CONFIG_NAME).is_file():
        log.warning(
            "%s: %s has no effect: the manifest does not name it (torch-model-archiver's "
            "--config-file, not --extra-files)",
            source.name,
            CONFIG_NAME,
        )
    name = _name(source, name or manifest.model_name, keep=written is None and extracted is None)
    return Archive(
        name=name,
        root=root,
        manifest=manifest,
        config=checked_config(yaml, f"model {name}: {manifest.config_file or CONFIG_NAME}"),
        yaml=yaml,
        source=source,
        extracted=extracted,
    )


def close_archive(archive: Archive) -> None:
    """Remove what was unpacked; a folder served in place stays as it is."""
    if archive.extracted is not None:
        shutil.rmtree(archive.extracted, ignore_errors=True)
    # Tracebacks cache the source files that they show, also of a model that failed to load. Copied
    # first, because other threads add to it.
    for name in [name for name in list(linecache.cache) if name.startswith(str(archive.root))]:
        linecache.cache.pop(name, None)


def _name(source: Path, given: str | None, *, keep: bool) -> str:
    """The given name, or one made from the file's (CONTRACT A5); a bare folder keeps its name."""
    if given is None and not (keep and MODEL_NAME.fullmatch(source.name)):
        stem = source.name.removesuffix(".tar.gz")
        stem = stem.rpartition(".")[0] or stem
        return re.sub(r"\W|^_", "_", stem, flags=re.ASCII)
    name = given or source.name
    if not MODEL_NAME.fullmatch(name):
        raise InvalidArchive(
            f"the model name {name!r} may hold letters, digits, '_', '-' and '.' only"
        )
    return name
