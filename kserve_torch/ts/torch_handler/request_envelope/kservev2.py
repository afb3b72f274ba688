"""``ts.torch_handler.request_envelope.kservev2`` (CONTRACT V3, T-01, T-02)."""

from __future__ import annotations

from typing import Any

import numpy as np

from kserve_torch.codec.datatypes import of_dtype
from kserve_torch.ts.torch_handler.request_envelope.base import BaseEnvelope
from kserve_torch.ts.torch_handler.request_envelope.kserve import body


class KServev2Envelope(BaseEnvelope):
    """Each body has ``inputs``, one row each; each answer has ``outputs`` named after them."""

    _bodies: tuple[dict[str, Any], ...] = ()

    def parse_input(self, data: list[Any]) -> list[dict[str, Any]]:
        """The input tensors of all bodies, their data in its real shape."""
        self._bodies = tuple(body(row) for row in data)
        return [_row(tensor) for parsed in self._bodies for tensor in parsed["inputs"]]

    def format_output(self, data: list[Any]) -> list[dict[str, Any]]:
        """Each body's share of the results, one output for each of its inputs."""
        results = iter(data)
        return [self._answer(index, parsed, results) for index, parsed in enumerate(self._bodies)]

    def _answer(self, index: int, parsed: dict[str, Any], results: Any) -> dict[str, Any]:
        model = (self.context.manifest or {}).get("model", {})
        return {
            "id": parsed.get("id") or self.context.get_request_id(index),
            "model_name": model.get("modelName"),
            "model_version": model.get("modelVersion"),
            "outputs": [_output(tensor["name"], next(results)) for tensor in parsed["inputs"]],
        }


def _row(tensor: dict[str, Any]) -> dict[str, Any]:
    data = tensor["data"]
    if tensor.get("datatype") == "BYTES":
        return {**tensor, "data": data[0] if isinstance(data, list) and len(data) == 1 else data}
    return {**tensor, "data": np.array(data).reshape(tensor["shape"]).tolist()}


def _output(name: str, result: Any) -> dict[str, Any]:
    array = np.atleast_1d(np.array(result))
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": of_dtype(array.dtype) or "BYTES",
        "data": array.ravel().tolist(),
    }
