"""``ts.torch_handler.vision_handler``."""

from __future__ import annotations

from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.timer import timed
from kserve_torch.handler.vision import VisionHandler

__all__ = ["BaseHandler", "VisionHandler", "timed"]
