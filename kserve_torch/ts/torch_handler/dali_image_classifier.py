"""``ts.torch_handler.dali_image_classifier``."""

from __future__ import annotations

from kserve_torch.handler.image_classifier import ImageClassifier
from kserve_torch.ts.unavailable import AbsentHandler


class DALIImageClassifier(AbsentHandler, ImageClassifier):
    """TorchServe's image classifier with NVIDIA DALI for its preprocessing."""

    needs = ("nvidia", "nvidia.dali")
    why = "DALI pipelines; name image_classifier instead"
