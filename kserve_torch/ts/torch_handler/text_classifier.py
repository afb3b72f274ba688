"""``ts.torch_handler.text_classifier``."""

from __future__ import annotations

import logging

import torch
from torch.nn import functional as F

from kserve_torch.handler.labels import map_class_to_label
from kserve_torch.handler.text import TextHandler
from kserve_torch.handler.text_classifier import TextClassifier
from kserve_torch.handler.tokens import ngrams_iterator
from kserve_torch.ts.late import late

__all__ = [
    "F",
    "TextClassifier",
    "TextHandler",
    "logger",
    "logging",
    "map_class_to_label",
    "ngrams_iterator",
    "torch",
]

logger = logging.getLogger("ts.torch_handler.text_classifier")
__getattr__ = late(__name__, "captum.attr", "TokenReferenceBase")
