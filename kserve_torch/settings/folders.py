"""The folders that settings name, and KServe's layout of them."""

from __future__ import annotations

from pathlib import Path

LAYOUT_CONFIG = Path("config", "config.properties")
LAYOUT_STORE = "model-store"


def has_kserve_layout(folder: Path) -> bool:
    """Whether a model folder has KServe's layout (INTERFACE, Start 1)."""
    return (folder / LAYOUT_CONFIG).is_file() or (folder / LAYOUT_STORE).is_dir()


def is_kserves(config: Path, store: Path | None) -> bool:
    """Whether a ``config.properties`` and a model store are those of one folder of KServe's."""
    if store is None or store.name != LAYOUT_STORE:
        return False
    return config.absolute() == store.parent.absolute() / LAYOUT_CONFIG
