"""LitServe with dynamic batching, else with its default settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litserve

from benchmarks.handling import only_handler
from benchmarks.peers import BATCH_DELAY_MS, BATCH_ROWS, PEERS, V1_PREDICT
from benchmarks.peers.program import task


class HandlerAPI(litserve.LitAPI):
    """Calls the handler with the rows of several requests."""

    def __init__(self, store: Path) -> None:
        (archive,) = store.glob("*.mar")
        super().__init__(
            max_batch_size=BATCH_ROWS,
            batch_timeout=BATCH_DELAY_MS / 1000,
            api_path=PEERS["litserve"].routes[V1_PREDICT].format(model=archive.stem),
        )
        self._store = store

    def setup(self, device: str) -> None:
        """Load the handler, in the worker's process."""
        self._handler = only_handler(self._store)

    # LitServe makes schemas of annotations and checks requests against them; examples have none.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        """The one row of a v1 request."""
        return request["instances"][0]

    def predict(self, x: list[Any]) -> list[Any]:
        """Answer a batch."""
        return self._handler(x)

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        """A v1 answer."""
        return {"predictions": [output]}


if __name__ == "__main__":
    work = task()
    server = litserve.LitServer(HandlerAPI(work.store), accelerator="auto")
    server.run(host="127.0.0.1", port=work.port, generate_client_file=False)
