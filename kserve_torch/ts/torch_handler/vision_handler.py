"""``ts.torch_handler.vision_handler``."""

from __future__ import annotations

import base64
import io
from abc import ABC

import torch
from PIL import Image

from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.timer import timed
from kserve_torch.handler.vision import VisionHandler
from kserve_torch.ts.late import late

__all__ = ["ABC", "BaseHandler", "Image", "VisionHandler", "base64", "io", "timed", "torch"]

__getattr__ = late(__name__, "captum.attr", "IntegratedGradients")
