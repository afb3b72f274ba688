"""``ts.model_service.model_service``: the base classes of handlers older than BaseHandler."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


class ModelService(ABC):
    """A handler that answers one request at a time from its signature's first input."""

    def __init__(
        self, model_name: str, model_dir: str, manifest: Any, gpu: int | None = None
    ) -> None:
        self.ctx: Any = None
        self._context: Any = None
        self._signature: dict[str, Any] = {}

    def initialize(self, context: Any) -> None:
        """Read the signature file that the manifest names.

        Raises:
            ValueError: there is no such file.
        """
        self._context = context
        path = Path(context.system_properties["model_dir"], context.manifest["Model"]["Signature"])
        if not path.is_file():
            raise ValueError(f"signature file {path.name} is not in the archive")
        self._signature = json.loads(path.read_bytes())

    @abstractmethod
    def inference(self, data: list[Any]) -> Any:
        """Answer ``data``, a list of one input."""

    def ping(self) -> str:
        """A word for health checks."""
        return "healthy"

    def signature(self) -> dict[str, Any]:
        """The parsed signature."""
        return self._signature

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Answer the first row: its field of the signature's first input, ``body`` or ``data``."""
        row = data[0]
        fields = (self._signature["inputs"][0]["data_name"], "body", "data")
        value = next((row[field] for field in fields if row.get(field) is not None), None)
        if self._signature["input_type"] == "application/json" and isinstance(
            value, (bytes, bytearray)
        ):
            value = json.loads(value)
        result = self.inference([value])
        return result if isinstance(result, list) else [result]


class SingleNodeService(ModelService):
    """A `ModelService` in three steps."""

    def inference(self, data: list[Any]) -> Any:
        """Preprocess, infer, postprocess."""
        return self._postprocess(self._inference(self._preprocess(data)))

    @abstractmethod
    def _inference(self, data: Any) -> Any:
        """The model's output."""

    def _preprocess(self, data: Any) -> Any:
        return data

    def _postprocess(self, data: Any) -> Any:
        return data
