"""``ts.torch_handler.request_envelope.json`` (CONTRACT V1)."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from kserve_torch.ts.torch_handler.request_envelope.base import BaseEnvelope


class JSONEnvelope(BaseEnvelope):
    """Each body has ``instances``, each answer is the JSON text of ``{"predictions": [...]}``."""

    _lengths: tuple[int, ...] = ()

    def parse_input(self, data: list[Any]) -> list[Any]:
        """The instances of all bodies, ``{"b64": ...}`` decoded."""
        batches = [(row.get("data") or row.get("body") or row)["instances"] for row in data]
        self._lengths = tuple(map(len, batches))
        return [_decoded(instance) for batch in batches for instance in batch]

    def format_output(self, data: list[Any]) -> list[str]:
        """Each body's share of the results."""
        results = iter(data)
        return [
            json.dumps({"predictions": [next(results) for _ in range(length)]})
            for length in self._lengths
        ]


def _decoded(instance: Any) -> Any:
    """``instance`` with base64 in it, or in its columns, as bytes."""
    if not isinstance(instance, dict):
        return instance
    if list(instance) == ["b64"]:
        return b64decode(instance["b64"])
    return {
        name: b64decode(column["b64"])
        if isinstance(column, dict) and list(column) == ["b64"]
        else column
        for name, column in instance.items()
    }
