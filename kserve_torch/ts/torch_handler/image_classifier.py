"""``ts.torch_handler.image_classifier``."""

from __future__ import annotations

from kserve_torch.handler.image_classifier import ImageClassifier
from kserve_torch.handler.labels import map_class_to_label
from kserve_torch.handler.timer import timed
from kserve_torch.handler.vision import VisionHandler

__all__ = ["ImageClassifier", "VisionHandler", "map_class_to_label", "timed"]
