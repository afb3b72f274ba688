"""``ts.torch_handler.text_handler``."""

from __future__ import annotations

import logging

from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.contractions import CONTRACTION_MAP
from kserve_torch.handler.text import CLEANUP_REGEX, CONTRACTIONS_PATTERN, TextHandler
from kserve_torch.handler.tokens import get_tokenizer

__all__ = [
    "CLEANUP_REGEX",
    "CONTRACTIONS_PATTERN",
    "CONTRACTION_MAP",
    "BaseHandler",
    "TextHandler",
    "get_tokenizer",
    "logger",
]

logger = logging.getLogger("ts.torch_handler.text_handler")
