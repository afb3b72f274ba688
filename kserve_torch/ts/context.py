"""``ts.context``."""

from __future__ import annotations

from kserve_torch.runtime.context import Context
from kserve_torch.runtime.processor import RequestProcessor

__all__ = ["Context", "RequestProcessor"]
