"""``ts.handler_utils.timer``."""

from __future__ import annotations

from kserve_torch.handler.timer import timed

__all__ = ["timed"]
