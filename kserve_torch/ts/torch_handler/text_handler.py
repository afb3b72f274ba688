"""``ts.torch_handler.text_handler``."""

from __future__ import annotations

import logging
import os
import re
import string
import unicodedata
from abc import ABC

import torch
from torch.nn import functional as F

from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.contractions import CONTRACTION_MAP
from kserve_torch.handler.text import CLEANUP_REGEX, CONTRACTIONS_PATTERN, TextHandler
from kserve_torch.handler.tokens import get_tokenizer
from kserve_torch.ts.late import late

__all__ = [
    "ABC",
    "CLEANUP_REGEX",
    "CONTRACTIONS_PATTERN",
    "CONTRACTION_MAP",
    "BaseHandler",
    "F",
    "TextHandler",
    "get_tokenizer",
    "logger",
    "logging",
    "os",
    "re",
    "string",
    "torch",
    "unicodedata",
]

logger = logging.getLogger("ts.torch_handler.text_handler")
__getattr__ = late(__name__, "captum.attr", "LayerIntegratedGradients")
