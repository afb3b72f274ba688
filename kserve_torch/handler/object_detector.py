"""ObjectDetector: labels and boxes of the objects in an image."""

from __future__ import annotations

from typing import Any

import torch
from torchvision import transforms

from kserve_torch.handler.images import ToRGB
from kserve_torch.handler.labels import map_class_to_label
from kserve_torch.handler.timer import timed
from kserve_torch.handler.vision import VisionHandler


class ObjectDetector(VisionHandler):
    """Answers ``[{label: box, "score": s}, ...]`` per row, for torchvision's detection models.

    Attributes:
        threshold: detections with a lower score are left out.
    """

    image_processing: Any = transforms.Compose([ToRGB(), transforms.ToTensor()])
    threshold = 0.5

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Per row, boxes ``[n, 4]``, labels ``[n]`` and scores ``[n]`` to a list of dicts."""
        return [self.__detections(row) for row in data]

    def __detections(self, row: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        kept = row["scores"] >= self.threshold
        found = zip(
            *(row[key][kept].tolist() for key in ("labels", "boxes", "scores")), strict=True
        )
        return [
            {**map_class_to_label([[box]], self.mapping, [[label]])[0], "score": score}
            for label, box, score in found
        ]
