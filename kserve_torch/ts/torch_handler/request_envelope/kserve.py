"""``ts.torch_handler.request_envelope.kserve`` (CONTRACT V2, T-01)."""

from __future__ import annotations

import json
from typing import Any

from kserve_torch.ts.torch_handler.request_envelope.base import BaseEnvelope


class KServeEnvelope(BaseEnvelope):
    """Each body has ``instances``, each answer ``predictions`` or ``explanations``."""

    _lengths: tuple[int, ...] = ()

    def parse_input(self, data: list[Any]) -> list[Any]:
        """The instances of all bodies."""
        batches = [body(row)["instances"] for row in data]
        self._lengths = tuple(map(len, batches))
        return [instance for batch in batches for instance in batch]

    def format_output(self, data: list[Any]) -> list[dict[str, Any]]:
        """Each body's share of the results, one for each of its instances."""
        explain = self.context.get_request_header(0, "explain") == "True"
        results = iter(data)
        return [
            {"explanations" if explain else "predictions": [next(results) for _ in range(length)]}
            for length in self._lengths
        ]


def body(row: dict[str, Any]) -> dict[str, Any]:
    """A row's parsed body."""
    value: Any = row.get("data") or row.get("body")
    parsed: dict[str, Any] = json.loads(value) if isinstance(value, (bytes, bytearray)) else value
    return parsed
