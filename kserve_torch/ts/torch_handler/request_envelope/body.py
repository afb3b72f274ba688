"""``ts.torch_handler.request_envelope.body`` (CONTRACT V1)."""

from __future__ import annotations

from typing import Any

from kserve_torch.handler.rows import payload
from kserve_torch.ts.torch_handler.request_envelope.base import BaseEnvelope


class BodyEnvelope(BaseEnvelope):
    """Rows are the bare bodies."""

    def parse_input(self, data: list[Any]) -> list[Any]:
        """Each row's payload."""
        return [payload(row) for row in data]

    def format_output(self, data: Any) -> Any:
        """The results as they are."""
        return data
