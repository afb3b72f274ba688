"""Which models are loaded at start, and the log's texts about the start."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kserve_torch.archives.folders import PACKED, find_archives, is_one_model, named_by_folder
from kserve_torch.archives.manifest import MANIFEST_PATH
from kserve_torch.errors import SettingError
from kserve_torch.models.version import ModelVersion
from kserve_torch.redact import redacted
from kserve_torch.runtime.devices import gpus
from kserve_torch.settings import Binding, Settings, StartupModel
from kserve_torch.settings.folders import naming

log = logging.getLogger(__name__)

_ENDINGS = ", ".join(f"*{ending}" for ending in PACKED)


def startup_models(settings: Settings) -> list[StartupModel]:
    """The models to load at start; ``model_name`` names a single one whose name is not set.

    Raises:
        SettingError: the folder cannot be read.
    """
    models, name = _models(settings), settings.model_name
    if name is None or name in [model.name for model in models]:
        return models
    if len(models) == 1 and (models[0].name is None or settings.startup_models() is None):
        return [replace(models[0], name=name)]
    if models:
        named = [model.name or redacted(str(model.file)) for model in models]
        text = "model_name: %s has no effect on %s: it is for a single model without a name"
        log.warning(text, name, ", ".join(named))
    return models


def warn_of_missing_gpus(settings: Settings) -> None:
    """Log if there are fewer GPUs than ``number_of_gpu``; those that exist are used."""
    wanted = settings.number_of_gpu
    if wanted and wanted > (present := gpus()):
        log.warning("number_of_gpu: %d requested, but this machine has %d", wanted, present)


def warn_of_idle_limits(settings: Settings, versions: Iterable[ModelVersion]) -> None:
    """Log which entries of ``models`` and ``model_snapshot`` are for nothing that was loaded.

    The name and version of an archive that could not be read are not known.
    """
    versions = list(versions)
    unread = {version.name for version in versions if version.archive is None}
    loaded = {(version.name, version.version) for version in versions}
    idle = [m for m in settings.idle(loaded) if m.name not in unread]
    if idle:
        log.warning(
            "models: the settings of %s have no effect; loaded are %s",
            ", ".join(f"{model.name} {model.version}" for model in idle),
            ", ".join(" ".join(each) for each in sorted(loaded)) or "none",
        )


def _models(settings: Settings) -> list[StartupModel]:
    """The models that the settings name, else those in the model folder (INTERFACE, Start)."""
    setting = "model_dir" if settings.model_store is None else "model_store"
    given: Path = getattr(settings, setting)
    named = settings.startup_models()
    if named is not None:
        _warn_of_missing_archives(given, named)
        return named
    store = given.absolute()  # a single model is loaded again from it
    with naming(setting, store):
        if not store.is_dir():
            return [StartupModel(name=None, file=_one_archive(store))]
        if setting == "model_dir" and is_one_model(store):
            return [StartupModel(name=None, file=store)]
        return [_model_at(path) for path in find_archives(store)]


def _warn_of_missing_archives(store: Path, models: Iterable[StartupModel]) -> None:
    """Log what the model store has instead; the errors, which clients see, do not say that."""
    names = [str(model.file) for model in models if "://" not in str(model.file)]
    with suppress(OSError):  # each model that cannot be loaded says why
        missing = [name for name in names if not _is_in(store, name)]
        if missing:
            there = ", ".join(path.name for path in find_archives(store)) or "no archives"
            log.warning("not in %s: %s; it has %s", store, ", ".join(missing), there)


def _is_in(store: Path, name: str) -> bool:
    """Whether a model store has a file, or one with the last part of its path."""
    return (store / name).exists() or (store / Path(name).name).exists()


def _model_at(path: Path) -> StartupModel:
    return StartupModel(name=path.name if named_by_folder(path) else None, file=path.name)


def _one_archive(file: Path) -> Path:
    if not file.name.endswith(PACKED):
        raise SettingError(f"model_dir: {file}: neither a folder nor an archive ({_ENDINGS})")
    return file


def why_no_models(settings: Settings) -> str:
    """Why there is nothing to load at start, for the log."""
    if settings.startup_models() is not None:
        return f"load_models is none ({settings.sources['load_models']})"
    store = settings.model_store or settings.model_dir
    return (
        f"no archives or model folders in {store} (looked for {_ENDINGS}, folders with "
        f"{MANIFEST_PATH} and folders with a handler)"
    )


def summary(
    wanted: int, loaded: Sequence[ModelVersion], ready: bool, seconds: float, imported_in: float
) -> str:
    """How the start went, for the log.

    Args:
        wanted: how many models were to be loaded.
        loaded: the versions that are ready.
        ready: whether the server is.
        seconds: how long it took, without the imports.
        imported_in: how many seconds the imports took before; 0 if they were not measured.
    """
    times = [f"imports in {imported_in:.2f} s"] if imported_in else []
    times += [f"{v.name} {v.version} in {v.load_seconds:.2f} s" for v in loaded]
    after = f"after {imported_in + seconds:.2f} s: {', '.join(times)}"
    parts = [f"ready {after}"] if ready else []
    if wanted > len(loaded) or not ready:
        failed = f"{wanted - len(loaded)} of {wanted} models failed to load"
        parts.append(failed if ready else f"not ready: {failed}")
    if loaded and not ready:
        parts.append(f"loaded {after}")
    return "; ".join(parts)


def listening(bindings: Iterable[Binding]) -> str:
    """The open sockets, for the log."""
    return ", ".join(
        f"{binding.address} ({', '.join(sorted(binding.roles))})" for binding in bindings
    )
