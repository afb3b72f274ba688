"""``ts.model_loader``: a `Service` from a folder, for tools that load models themselves."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from kserve_torch.archives.manifest import read_manifest
from kserve_torch.handler import stock_handler
from kserve_torch.handler.classes import list_classes_from_module
from kserve_torch.runtime.entry import Entry, entry_of
from kserve_torch.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from kserve_torch.ts.service import Service


class ModelLoaderFactory:
    """Returns the loader."""

    @staticmethod
    def get_model_loader() -> TsModelLoader:
        """The one loader there is."""
        return TsModelLoader()


class ModelLoader:
    """The base of loaders."""


class TsModelLoader(ModelLoader):
    """The loader of unpacked archives (CONTRACT H1, H2)."""

    def load(
        self,
        model_name: str,
        model_dir: str,
        handler: str,
        gpu_id: int | None = None,
        batch_size: int = 1,
        envelope: str | None = None,
        limit_max_image_pixels: bool = True,
        metrics_cache: Any = None,
    ) -> Service:
        """Load and initialise the handler of the model in ``model_dir``.

        Raises:
            LoadFailed: the handler has no entry point.
            ImportError: the handler, or what it imports, is not there.
        """
        entry = self._entry(model_dir, handler)
        handle = entry.handle
        if envelope is not None:
            handle = self._envelope(envelope)(handle).handle
        metrics = metrics_cache or MetricsCacheYamlImpl(model_name=model_name)
        service = Service(
            model_name,
            model_dir,
            read_manifest(Path(model_dir)),
            handle,
            gpu_id,
            batch_size,
            limit_max_image_pixels,
            metrics,
        )
        entry.initialize(service.context)
        return service

    def _entry(self, model_dir: str, handler: str) -> Entry:
        path, _, function = handler.rpartition("/")[2].partition(":")
        name = path.removesuffix(".py")
        stock = stock_handler(name)
        if stock is not None and not Path(model_dir, f"{name}.py").is_file():
            return entry_of(stock)
        sys.path.insert(0, model_dir)
        return entry_of(importlib.import_module(name), function)

    def _envelope(self, name: str) -> Any:
        module = importlib.import_module(f"kserve_torch.ts.torch_handler.request_envelope.{name}")
        return list_classes_from_module(module)[0]
