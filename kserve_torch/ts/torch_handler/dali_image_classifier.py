"""``ts.torch_handler.dali_image_classifier``."""

from __future__ import annotations

from kserve_torch.handler.image_classifier import ImageClassifier
from kserve_torch.runtime.context import Context
from kserve_torch.ts.absent import without_dali


class DALIImageClassifier(ImageClassifier):
    """TorchServe's image classifier with NVIDIA DALI for its preprocessing."""

    def initialize(self, context: Context) -> None:
        """Say what is missing.

        Raises:
            LoadFailed: always: DALI is not installed, or its pipelines are not run here.
        """
        raise without_dali("dali_image_classifier", "name image_classifier")
