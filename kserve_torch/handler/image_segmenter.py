"""ImageSegmenter: the most probable class of each pixel."""

from __future__ import annotations

from typing import Any

import torch

from kserve_torch.handler.image_classifier import imagenet_processing
from kserve_torch.handler.timer import timed
from kserve_torch.handler.vision import VisionHandler


class ImageSegmenter(VisionHandler):
    """Answers ``[class, probability]`` for each pixel, ``[height, width, 2]`` per row."""

    image_processing: Any = imagenet_processing()

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """The model's ``out``, logits ``[rows, classes, height, width]``, to nested lists."""
        best = torch.softmax(data["out"], dim=1).max(dim=1)
        pairs = torch.stack([best.indices.to(best.values.dtype), best.values], dim=3)
        result: list[Any] = pairs.tolist()
        return result
