"""``ts.torch_handler.request_envelope.json`` (CONTRACT V1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kserve_torch.codec.envelope import open_envelope
from kserve_torch.ts.torch_handler.request_envelope.base import PerInstance


class JSONEnvelope(PerInstance):
    """Each body has ``instances``, each answer is the JSON text of ``{"predictions": [...]}``."""

    def _instances(self, row: dict[str, Any]) -> Sequence[Any]:
        return open_envelope("json", row).rows

    def _answer(self, results: list[Any]) -> str:
        return json.dumps({"predictions": results})
