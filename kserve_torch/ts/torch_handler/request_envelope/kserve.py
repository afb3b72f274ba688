"""``ts.torch_handler.request_envelope.kserve`` (CONTRACT V2, T-01)."""

from __future__ import annotations

import json
from typing import Any

from kserve_torch.ts.torch_handler.request_envelope.base import PerInstance


class KServeEnvelope(PerInstance):
    """Each body has ``instances``, each answer ``predictions`` or ``explanations``."""

    def _instances(self, row: dict[str, Any]) -> list[Any]:
        return list(body(row)["instances"])

    def _answer(self, results: list[Any]) -> dict[str, list[Any]]:
        explain = self.context.get_request_header(0, "explain") == "True"
        return {"explanations" if explain else "predictions": results}


def body(row: dict[str, Any]) -> dict[str, Any]:
    """A row's parsed body."""
    value: Any = row.get("data") or row.get("body")
    parsed: dict[str, Any] = json.loads(value) if isinstance(value, (bytes, bytearray)) else value
    return parsed
