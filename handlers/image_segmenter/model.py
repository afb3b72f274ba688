"""The network of the image segmenter."""

from torch import Tensor, nn
from torchvision.models.segmentation import lraspp_mobilenet_v3_large


class LRASPP(nn.Module):
    """Lite R-ASPP with a MobileNetV3 behind it, for the 21 classes of Pascal VOC."""

    def __init__(self) -> None:
        super().__init__()
        self.network = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Score each pixel.

        Args:
            images: float32 ``[n, 3, height, width]``, normalised as ImageNet's.

        Returns:
            ``out``: float32 ``[n, 21, height, width]``.
        """
        return self.network(images)
