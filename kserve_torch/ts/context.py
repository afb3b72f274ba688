"""``ts.context``."""

from __future__ import annotations

from kserve_torch.context import Context, RequestProcessor

__all__ = ["Context", "RequestProcessor"]
