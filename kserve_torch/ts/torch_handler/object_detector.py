"""``ts.torch_handler.object_detector``."""

from __future__ import annotations

from kserve_torch.handler.labels import map_class_to_label
from kserve_torch.handler.object_detector import ObjectDetector
from kserve_torch.handler.vision import VisionHandler

__all__ = ["ObjectDetector", "VisionHandler", "map_class_to_label"]
