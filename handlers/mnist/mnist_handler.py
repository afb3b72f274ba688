"""Reads handwritten digits: a picture in, the digit out.

An archive made of this file, ``mnist.py`` and ``mnist_cnn.pt`` also runs on a stock TorchServe.
"""

import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision import transforms
from ts.service import PredictionException
from ts.torch_handler.image_classifier import ImageClassifier

#: Edges of an MNIST picture and of the box inside that holds the digit, in pixels.
PICTURE, BOX = 28, 20
#: Grey value above which a pixel belongs to the digit, once the contrast is stretched.
INK = 64


def as_mnist(image: Image.Image) -> Image.Image:
    """Bring any picture of one digit to MNIST's form: 28x28, grey, white on black.

    A picture of 28x28 pixels is taken to have that form already and only loses its colours. Of
    any other, the ink is cut out, made to fit the box and centred by its mass, as MNIST's authors
    did; a bright background is inverted first. Transparent parts count as white paper.
    """
    if image.mode in ("I", "F"):
        raise PredictionException("data: 8 or 16 bits a channel expected, not 32", 400)
    if image.mode.startswith("I;16"):  # PIL would take all that is above 255 for white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    grey = image.convert("L")
    if grey.size == (PICTURE, PICTURE):
        return grey
    if _is_bright_around(grey):
        grey = ImageOps.invert(grey)
    return _centred(_fitted(grey))


def _is_bright_around(grey: Image.Image) -> bool:
    """Tell whether most of the outermost pixels are nearer to white."""
    pixels = np.asarray(grey)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return bool(np.median(border) > 127)


def _fitted(grey: Image.Image) -> Image.Image:
    """Cut out what is bright and give its longer edge the length of the box."""
    stretched = ImageOps.autocontrast(grey)
    ink = stretched.crop(stretched.point(lambda value: value * (value > INK)).getbbox())
    scale = BOX / max(ink.size)
    size = (max(round(ink.width * scale), 1), max(round(ink.height * scale), 1))
    return ImageOps.autocontrast(ink.resize(size))


def _centred(ink: Image.Image) -> Image.Image:
    """Paste ``ink`` so that its centre of mass is the picture's centre, as far as it fits."""
    mass = np.asarray(ink, dtype=np.float64) + 1e-6
    down = mass.sum(1) @ (np.arange(ink.height) + 0.5) / mass.sum()
    across = mass.sum(0) @ (np.arange(ink.width) + 0.5) / mass.sum()
    left = min(max(round(PICTURE / 2 - across), 0), PICTURE - ink.width)
    top = min(max(round(PICTURE / 2 - down), 0), PICTURE - ink.height)
    picture = Image.new("L", (PICTURE, PICTURE))
    picture.paste(ink, (left, top))
    return picture


class MNISTDigitClassifier(ImageClassifier):
    """One row is a picture (bytes or base64 text) or a normalised tensor ``[1, 28, 28]``."""

    image_processing = transforms.Compose(
        [
            transforms.Lambda(as_mnist),
            transforms.ToTensor(),
            transforms.Normalize((0.1307,), (0.3081,)),
        ]
    )

    def postprocess(self, data: torch.Tensor) -> list[int]:
        """Name the most likely digit of each row of ``[rows, 10]`` scores."""
        return data.argmax(1).tolist()
