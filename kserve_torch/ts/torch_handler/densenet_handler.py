"""``ts.torch_handler.densenet_handler``."""

from __future__ import annotations

import logging

from kserve_torch.handler.classes import list_classes_from_module
from kserve_torch.handler.densenet import DenseNetHandler

__all__ = ["DenseNetHandler", "list_classes_from_module", "logger"]

logger = logging.getLogger("ts.torch_handler.densenet_handler")
