"""The stock handlers, which an archive may name instead of bringing its own (CONTRACT H5).

Importing this is cheap; a handler's own module, and torch with it, is imported when needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

#: Name in a manifest -> where in this package its class is.
STOCK: Mapping[str, str] = MappingProxyType(
    {
        "base_handler": "handler.base:BaseHandler",
        "vision_handler": "handler.vision:VisionHandler",
        "image_classifier": "handler.image_classifier:ImageClassifier",
        "image_segmenter": "handler.image_segmenter:ImageSegmenter",
        "object_detector": "handler.object_detector:ObjectDetector",
        "text_handler": "handler.text:TextHandler",
        "text_classifier": "handler.text_classifier:TextClassifier",
        "densenet_handler": "handler.densenet:DenseNetHandler",
        "dali_image_classifier": "ts.torch_handler.dali_image_classifier:DALIImageClassifier",
        "vllm_handler": "ts.torch_handler.vllm_handler:VLLMHandler",
        "trt_llm_handler": "ts.torch_handler.trt_llm_handler:TRTLLMHandler",
    }
)


def stock_handler(name: str) -> type | None:
    """The stock handler class that a manifest calls ``name``, or None if there is none."""
    if name not in STOCK:
        return None
    module, _, attribute = STOCK[name].partition(":")
    return cast("type", getattr(importlib.import_module(f"kserve_torch.{module}"), attribute))
