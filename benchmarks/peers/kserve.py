"""A plain custom model on KServe's own server, with its default settings."""

from __future__ import annotations

from typing import Any

import kserve
import numpy as np
from kserve import InferOutput, InferRequest, InferResponse

from benchmarks.handling import Handler, only_handler
from benchmarks.peers.program import free_ports, task


class HandlerModel(kserve.Model):
    """Calls the handler for each request by itself, as KServe's examples do."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler.name)
        self._handler = handler
        self.ready = True

    def predict(
        self,
        payload: dict[str, Any] | InferRequest,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> dict[str, Any] | InferResponse:
        """Answer v1 instances with results, v2 tensors with one tensor of them."""
        if isinstance(payload, dict):
            return {"predictions": self._handler(payload["instances"])}
        results = self._handler([{"data": tensor.as_numpy()} for tensor in payload.inputs])
        array = np.asarray(results)
        datatype = "INT64" if array.dtype == np.int64 else "FP64"
        output = InferOutput("output-0", list(array.shape), datatype, data=array.tolist())
        return InferResponse(payload.id, self.name, [output])


if __name__ == "__main__":
    work = task()
    model = HandlerModel(only_handler(work.store))
    kserve.ModelServer(http_port=work.port, grpc_port=free_ports(1)[0]).start([model])
