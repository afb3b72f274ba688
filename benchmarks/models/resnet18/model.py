"""ResNet-18."""

from torchvision.models.resnet import BasicBlock, ResNet


class ImageClassifier(ResNet):
    """torchvision's ResNet-18, which is a function there and no class."""

    def __init__(self) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2])
