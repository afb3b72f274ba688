"""``ts.torch_handler.text_classifier``."""

from __future__ import annotations

import logging

from kserve_torch.handler.labels import map_class_to_label
from kserve_torch.handler.text import TextHandler
from kserve_torch.handler.text_classifier import TextClassifier
from kserve_torch.handler.tokens import ngrams_iterator

__all__ = ["TextClassifier", "TextHandler", "logger", "map_class_to_label", "ngrams_iterator"]

logger = logging.getLogger("ts.torch_handler.text_classifier")
