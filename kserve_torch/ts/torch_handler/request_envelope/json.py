"""``ts.torch_handler.request_envelope.json`` (CONTRACT V1)."""

from __future__ import annotations

import json
from typing import Any

from kserve_torch.codec.envelope import with_bytes
from kserve_torch.ts.torch_handler.request_envelope.base import PerInstance


class JSONEnvelope(PerInstance):
    """Each body has ``instances``, each answer is the JSON text of ``{"predictions": [...]}``."""

    def _instances(self, row: dict[str, Any]) -> list[Any]:
        instances = (row.get("data") or row.get("body") or row)["instances"]
        return [with_bytes(instance, i) for i, instance in enumerate(instances)]

    def _answer(self, results: list[Any]) -> str:
        return json.dumps({"predictions": results})
