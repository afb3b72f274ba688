"""``ts.context``."""

from __future__ import annotations

from kserve_torch.context import Context
from kserve_torch.processor import RequestProcessor

__all__ = ["Context", "RequestProcessor"]
