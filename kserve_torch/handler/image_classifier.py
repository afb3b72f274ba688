"""ImageClassifier: the most probable ImageNet classes of an image."""

from __future__ import annotations

from typing import Any

import torch
from torchvision import transforms

from kserve_torch.handler.images import ToRGB
from kserve_torch.handler.labels import map_class_to_label
from kserve_torch.handler.timer import timed
from kserve_torch.handler.vision import VisionHandler

#: ImageNet's mean and standard deviation per channel, with which torchvision's models were trained.
IMAGENET_NORMALIZE = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])


def imagenet_processing() -> transforms.Compose:
    """Shorter side to 256, the middle 224 x 224, normalised."""
    return transforms.Compose(
        [
            ToRGB(),
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            IMAGENET_NORMALIZE,
        ]
    )


class ImageClassifier(VisionHandler):
    """Answers ``{label: probability}`` for the ``topk`` most probable classes, in that order."""

    topk = 5
    image_processing: Any = imagenet_processing()

    def set_max_result_classes(self, topk: int) -> None:
        """Answer with ``topk`` classes."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """How many classes an answer has."""
        return self.topk

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """Logits ``[rows, classes]`` to a dict per row, of all classes if ``topk`` is more."""
        probabilities = torch.softmax(data, dim=1)
        best = torch.topk(probabilities, min(self.topk, probabilities.shape[1]), dim=1)
        return map_class_to_label(best.values.tolist(), self.mapping, best.indices.tolist())
