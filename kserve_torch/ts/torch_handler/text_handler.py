"""``ts.torch_handler.text_handler``."""

from __future__ import annotations

from kserve_torch.handler.text import TextHandler

__all__ = ["TextHandler"]
