"""``ts.torch_handler.request_envelope.kserve`` (CONTRACT V2, T-01)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kserve_torch.codec.envelope import open_envelope
from kserve_torch.ts.torch_handler.request_envelope.base import PerInstance


class KServeEnvelope(PerInstance):
    """Each body has ``instances``, each answer ``predictions`` or ``explanations``."""

    def _instances(self, row: dict[str, Any]) -> Sequence[Any]:
        return open_envelope("kserve", row).rows

    def _answer(self, results: list[Any]) -> dict[str, list[Any]]:
        explain = self.context.get_request_header(0, "explain") == "True"
        return {"explanations" if explain else "predictions": results}
