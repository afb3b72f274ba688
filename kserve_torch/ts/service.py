"""``ts.service``: an entry point together with its Context (CONTRACT R6, R7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kserve_torch.runtime.context import Context
from kserve_torch.runtime.processor import RequestProcessor
from kserve_torch.ts.utils.util import PredictionException, get_yaml_config
from kserve_torch.ts.version import __version__

__all__ = [
    "PREDICTION_METRIC",
    "PredictionException",
    "Service",
    "emit_metrics",
    "logger",
]

log = logging.getLogger(__name__)
logger = logging.getLogger("ts.service")

PREDICTION_METRIC = "PredictionTime"


class Service:
    """Calls an entry point on batches of raw requests; the server itself does not use it.

    Attributes:
        context: the entry point's.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Mapping[str, Any] | None,
        entry_point: Callable[[list[Any], Context], Any],
        gpu: int | None,
        batch_size: int,
        limit_max_image_pixels: bool = True,
        metrics_cache: Any = None,
    ) -> None:
        config = (manifest or {}).get("model", {}).get("configFile")
        self._entry_point = entry_point
        self.context = Context(
            model_name,
            model_dir,
            manifest,
            batch_size,
            gpu,
            __version__,
            limit_max_image_pixels,
            metrics_cache,
            get_yaml_config(Path(model_dir, config)) if config else {},
        )

    @staticmethod
    def retrieve_data_for_inference(
        batch: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[list[RequestProcessor], list[dict[str, Any]], dict[int, str]]:
        """Processors, rows and request ids of raw requests.

        Args:
            batch: mappings of ``requestId`` (bytes), ``parameters`` (name, value, contentType) and
                optionally ``headers`` (name and value, bytes).

        Raises:
            ValueError: ``batch`` is None.
        """
        if batch is None:
            raise ValueError("Received invalid inputs")
        processors = [RequestProcessor(_headers(request)) for request in batch]
        rows = [{p["name"]: p["value"] for p in request["parameters"]} for request in batch]
        ids = {index: request["requestId"].decode() for index, request in enumerate(batch)}
        return processors, rows, ids

    def set_cl_socket(self, cl_socket: Any) -> None:
        """TorchServe's socket to its front end; not used here."""
        self.context.cl_socket = cl_socket

    def predict(self, batch: Sequence[Mapping[str, Any]] | None) -> Any:
        """The entry point's results for ``batch``, one per request."""
        processors, rows, ids = self.retrieve_data_for_inference(batch)
        self.context.request_processor, self.context.request_ids = processors, ids
        start = time.perf_counter()
        results = self._entry_point(rows, self.context)
        if self.context.metrics is not None:
            self.context.metrics.request_ids = ids
            milliseconds = round((time.perf_counter() - start) * 1000, 2)
            self.context.metrics.add_time(PREDICTION_METRIC, milliseconds)
        return results


def _headers(request: Mapping[str, Any]) -> dict[str, Any]:
    headers: dict[str, Any] = {
        parameter["name"]: {"content-type": parameter.get("contentType", "")}
        for parameter in request["parameters"]
    }
    for header in request.get("headers") or ():
        headers[header["name"].decode()] = header["value"].decode()
    return headers


def emit_metrics(metrics: Any) -> None:
    """Write each metric of a `MetricsStore`'s list to the log (CONTRACT M5)."""
    for metric in metrics or ():
        log.info("[METRICS]%s", metric)
