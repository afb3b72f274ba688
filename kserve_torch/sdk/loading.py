"""Loads the archive of a `TorchModel` outside our own server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kserve_torch import errors
from kserve_torch.archives.folders import find_archives, is_one_model
from kserve_torch.settings import load_settings
from kserve_torch.settings.folders import LAYOUT_STORE, has_kserve_layout

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry


def load_alone(name: str, model_dir: Path) -> Registry:
    """A registry with the one archive of ``model_dir``, loaded under ``name``.

    Raises:
        ServingError: the archive cannot be served; the message says why.
    """
    from kserve_torch.models.registry import Registry

    archive = _one_archive(model_dir)
    folder = model_dir if has_kserve_layout(model_dir) else model_dir.parent
    registry = Registry(load_settings(["--model_dir", str(folder)], {}, "kserve_torch"))
    try:
        in_thread(registry.register(archive, name=name))
    except BaseException:
        in_thread(registry.close())
        raise
    return registry


def _one_archive(model_dir: Path) -> Path:
    """The archive itself, or the only one of a model store.

    Raises:
        InvalidArchive: the store has none, or several.
    """
    store = model_dir / LAYOUT_STORE if has_kserve_layout(model_dir) else model_dir
    if not store.is_dir() or is_one_model(store):
        return store
    found = find_archives(store)
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "none"
    raise errors.InvalidArchive(f"one archive is wanted in {store.name}, got {names}")


def in_thread(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine to its end, whether or not an event loop runs on this thread."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(asyncio.run, work).result()
