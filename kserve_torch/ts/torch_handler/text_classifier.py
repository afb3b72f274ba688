"""``ts.torch_handler.text_classifier``."""

from __future__ import annotations

from kserve_torch.handler.text_classifier import TextClassifier

__all__ = ["TextClassifier"]
