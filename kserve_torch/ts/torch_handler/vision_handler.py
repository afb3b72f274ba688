"""``ts.torch_handler.vision_handler``."""

from __future__ import annotations

from kserve_torch.handler.vision import VisionHandler

__all__ = ["VisionHandler"]
