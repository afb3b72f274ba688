"""``ts.torch_handler.request_envelope.json`` (CONTRACT V1)."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from kserve_torch.ts.torch_handler.request_envelope.base import PerInstance


class JSONEnvelope(PerInstance):
    """Each body has ``instances``, each answer is the JSON text of ``{"predictions": [...]}``."""

    def _instances(self, row: dict[str, Any]) -> list[Any]:
        return list(map(_decoded, (row.get("data") or row.get("body") or row)["instances"]))

    def _answer(self, results: list[Any]) -> str:
        return json.dumps({"predictions": results})


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
