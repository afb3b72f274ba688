"""``ts.torch_handler.image_segmenter``."""

from __future__ import annotations

from kserve_torch.handler.image_segmenter import ImageSegmenter
from kserve_torch.handler.vision import VisionHandler

__all__ = ["ImageSegmenter", "VisionHandler"]
