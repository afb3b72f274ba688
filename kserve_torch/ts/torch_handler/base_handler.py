"""``ts.torch_handler.base_handler``."""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec

from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.classes import list_classes_from_module
from kserve_torch.handler.compile import check_valid_pt2_backend
from kserve_torch.handler.labels import load_label_mapping
from kserve_torch.handler.timer import timed

__all__ = [
    "IPEX_AVAILABLE",
    "ONNX_AVAILABLE",
    "PROFILER_AVAILABLE",
    "PT2_AVAILABLE",
    "PT230_AVAILABLE",
    "XLA_AVAILABLE",
    "BaseHandler",
    "check_valid_pt2_backend",
    "ipex_enabled",
    "list_classes_from_module",
    "load_label_mapping",
    "logger",
    "timed",
]

logger = logging.getLogger("ts.torch_handler.base_handler")

PROFILER_AVAILABLE = PT2_AVAILABLE = PT230_AVAILABLE = True
ONNX_AVAILABLE = find_spec("onnxruntime") is not None
XLA_AVAILABLE = find_spec("torch_xla") is not None
IPEX_AVAILABLE = (
    os.environ.get("TS_IPEX_ENABLE", "false") == "true"
    and find_spec("intel_extension_for_pytorch") is not None
)
#: Its name up to TorchServe 0.7.
ipex_enabled = IPEX_AVAILABLE
