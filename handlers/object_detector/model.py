"""The network of the object detector."""

from torch import Tensor, nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large


class SSDLite(nn.Module):
    """SSDlite with a MobileNetV3 behind it, for the 91 categories of COCO."""

    def __init__(self) -> None:
        super().__init__()
        self.network = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        """Find objects.

        Args:
            images: float32 ``[n, 3, height, width]`` in 0..1.

        Returns:
            For each image ``boxes`` ``[m, 4]`` in pixels (left, top, right, bottom), ``labels``
            ``[m]`` and ``scores`` ``[m]``, the best first.
        """
        return self.network(list(images))
