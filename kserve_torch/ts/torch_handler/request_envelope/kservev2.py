"""``ts.torch_handler.request_envelope.kservev2`` (CONTRACT V3, T-01, T-02)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kserve_torch.codec.envelope import object_in
from kserve_torch.codec.results import tensor_from_result
from kserve_torch.codec.rows import to_row
from kserve_torch.codec.v2 import V2Request, from_document
from kserve_torch.ts.torch_handler.request_envelope.base import BaseEnvelope


class KServev2Envelope(BaseEnvelope):
    """Each body has ``inputs``, one row each; each answer has ``outputs`` named after them."""

    _requests: tuple[V2Request, ...] = ()

    def parse_input(self, data: list[Any]) -> list[dict[str, Any]]:
        """The input tensors of all bodies, their data in its real shape."""
        self._requests = tuple(from_document(object_in(row, "kservev2")) for row in data)
        return [to_row(tensor) for request in self._requests for tensor in request.inputs]

    def format_output(self, data: list[Any]) -> list[dict[str, Any]]:
        """Each body's share of the results, one output for each of its inputs."""
        results = iter(data)
        return [self._answer(i, request, results) for i, request in enumerate(self._requests)]

    def _answer(self, index: int, request: V2Request, results: Iterator[Any]) -> dict[str, Any]:
        model = (self.context.manifest or {}).get("model", {})
        return {
            "id": request.id or self.context.get_request_id(index),
            "model_name": model.get("modelName"),
            "model_version": model.get("modelVersion"),
            "outputs": [_output(tensor.name, next(results)) for tensor in request.inputs],
        }


def _output(name: str, result: Any) -> dict[str, Any]:
    tensor = tensor_from_result(name, result)
    data = tensor.array.ravel().tolist()
    return {"name": name, "shape": [*tensor.shape], "datatype": tensor.datatype, "data": data}
