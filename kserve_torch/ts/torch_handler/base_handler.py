"""``ts.torch_handler.base_handler``."""

from __future__ import annotations

from kserve_torch.handler.base import BaseHandler

__all__ = ["BaseHandler"]
