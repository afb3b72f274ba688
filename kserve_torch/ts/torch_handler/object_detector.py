"""``ts.torch_handler.object_detector``."""

from __future__ import annotations

from kserve_torch.handler.object_detector import ObjectDetector

__all__ = ["ObjectDetector"]
