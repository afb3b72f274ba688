"""``ts.torch_handler.image_classifier``."""

from __future__ import annotations

from kserve_torch.handler.image_classifier import ImageClassifier

__all__ = ["ImageClassifier"]
