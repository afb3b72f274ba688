"""MLServer with adaptive batching, else with its default settings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import install_uvloop_event_loop

from benchmarks.handling import only_handler
from benchmarks.peers import BATCH_DELAY_MS, BATCH_ROWS
from benchmarks.peers.program import free_ports, task


class HandlerModel(MLModel):
    """Calls the handler with what MLServer made of several requests: one tensor ``[rows, ...]``."""

    async def load(self) -> bool:
        """Load the handler of the store's archive."""
        self._handler = only_handler(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answer each element of the first dimension."""
        array = NumpyCodec.decode_input(payload.inputs[0])
        results = self._handler([{"data": row[np.newaxis]} for row in array])
        output = NumpyCodec.encode_output("output-0", np.asarray(results))
        return InferenceResponse(model_name=self.name, outputs=[output])


async def _serve() -> None:
    work = task()
    grpc, metrics = free_ports(2)
    settings = Settings(host="127.0.0.1", http_port=work.port, grpc_port=grpc, metrics_port=metrics)
    (archive,) = work.store.glob("*.mar")
    model = ModelSettings(
        name=archive.stem,
        implementation="benchmarks.peers.mlserver.HandlerModel",
        max_batch_size=BATCH_ROWS,
        max_batch_time=BATCH_DELAY_MS / 1000,
        parameters=ModelParameters(uri=str(work.store)),
    )
    await MLServer(settings).start([model])


if __name__ == "__main__":
    install_uvloop_event_loop()  # as `mlserver start` does
    asyncio.run(_serve())
