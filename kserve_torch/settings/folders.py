"""The folders that settings name, and KServe's layout of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kserve_torch.errors import SettingError

LAYOUT_CONFIG = Path("config", "config.properties")
LAYOUT_STORE = "model-store"


def has_kserve_layout(folder: Path) -> bool:
    """Whether a model folder has KServe's layout (INTERFACE, Start 1)."""
    return (folder / LAYOUT_CONFIG).is_file() or (folder / LAYOUT_STORE).is_dir()


def is_kserves(config: Path, store: Path | None) -> bool:
    """Whether a ``config.properties`` and a model store belong to one folder in KServe's layout."""
    if store is None or store.name != LAYOUT_STORE:
        return False
    return config.absolute() == store.parent.absolute() / LAYOUT_CONFIG


def config_file(model_dir: Path | None) -> Path | None:
    """The ``config.properties`` to read if none is named: the model folder's, or ``./``.

    Raises:
        SettingError: the model folder cannot be read.
    """
    if model_dir is not None:
        with naming("model_dir", model_dir):
            if (model_dir / LAYOUT_CONFIG).is_file():
                return model_dir / LAYOUT_CONFIG
    here = Path("config.properties")
    try:
        return here if here.is_file() else None
    except OSError:  # nobody asked for the working directory
        return None


@contextmanager
def naming(setting: str, path: Path) -> Iterator[None]:
    """Turns file system errors into one line about the setting that named ``path``.

    Raises:
        SettingError: instead of any OSError.
    """
    try:
        yield
    except OSError as error:
        where, user = error.filename or path, os.geteuid()
        raise SettingError(f"{setting}: {where}: {error.strerror} (as user {user})") from error
