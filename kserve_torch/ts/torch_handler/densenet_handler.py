"""``ts.torch_handler.densenet_handler``."""

from __future__ import annotations

import io
import logging
import os
import time

import torch

from kserve_torch.handler.classes import list_classes_from_module
from kserve_torch.handler.densenet import DenseNetHandler

__all__ = [
    "DenseNetHandler",
    "io",
    "list_classes_from_module",
    "logger",
    "logging",
    "os",
    "time",
    "torch",
]

logger = logging.getLogger("ts.torch_handler.densenet_handler")
