"""What is loaded and opened at start, and the words for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kserve_torch.archive import find_archives, layout_of
from kserve_torch.settings import Binding, Settings, StartupModel
from kserve_torch.settings.folders import naming


def startup_models(settings: Settings) -> list[StartupModel]:
    """What is loaded at start, by the layout of the model folder (INTERFACE, Start).

    Raises:
        SettingError: the folder cannot be read.
    """
    named = settings.startup_models()
    if named is not None:
        return named
    setting = "model_dir" if settings.model_store is None else "model_store"
    store: Path | None = getattr(settings, setting)
    if store is None:
        return []
    with naming(setting, store):
        if not store.is_dir():
            return []
        if setting == "model_dir" and layout_of(store) in ("archive", "bare"):
            return [StartupModel(name=settings.model_name, file=store)]
        return [StartupModel(name=None, file=path.name) for path in find_archives(store)]


def listening(bindings: Iterable[Binding]) -> str:
    """The open sockets, for the log."""
    return ", ".join(
        f"{binding.address} ({', '.join(sorted(binding.roles))})" for binding in bindings
    )
