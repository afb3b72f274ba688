"""The network of the image classifier."""

from torchvision.models.resnet import BasicBlock, ResNet


class ResNet18(ResNet):
    """ResNet-18 for ImageNet's 1,000 classes; torchvision's own checkpoints fit as they are."""

    def __init__(self) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2])
