"""scikit-learn's 1,797 handwritten digits, and ten printed ones, as pictures in MNIST's manner.

The set is the test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak;
UCI Machine Learning Repository, CC BY 4.0): 8x8 pixels of 17 greys, white on black. MNIST puts a
digit into a box of 20x20 and that box into 28x28 so that the centre of mass is the centre.

A digit is kept as a *relief*: its grey values enlarged smoothly to 56x56. Cutting the relief at
some height gives a stroke with sharp edges; the height decides how thick it is.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

MEAN, STD = 0.1307, 0.3081
HELD_OUT_PER_DIGIT = 36
#: How often an epoch shows each printed digit: about one picture in twenty is printed.
PRINTED_COPIES = 8
#: Edge length of a relief, twice that of a picture.
RELIEF = 56
#: Height of the cut and softness of its edge, where nothing is varied.
CUT, SOFTNESS = 0.40, 0.35


@dataclass(frozen=True, slots=True)
class Digits:
    """Digits and what they are.

    Attributes:
        reliefs: float32 ``[n, 1, 56, 56]`` in 0..1.
        labels: int64 ``[n]``.
    """

    reliefs: Tensor
    labels: Tensor


def load() -> tuple[Digits, Digits]:
    """Give the part to learn from, and the last 36 of every written digit, which are held out.

    The set is in the order in which its writers were asked, so the held-out digits come mostly
    from other hands than the rest.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    reliefs = torch.stack([_relief(g) for g in torch.tensor(bunch.images, dtype=torch.float32)])
    last = [torch.nonzero(labels == digit).flatten()[-HELD_OUT_PER_DIGIT:] for digit in range(10)]
    held_out = torch.cat(last)
    learnt = torch.ones(len(labels), dtype=torch.bool)
    learnt[held_out] = False
    printed = torch.stack([_relief(_printed(digit)) for digit in range(10)] * PRINTED_COPIES)
    return (
        Digits(
            torch.cat([reliefs[learnt], printed]),
            torch.cat([labels[learnt], torch.arange(10).repeat(PRINTED_COPIES)]),
        ),
        Digits(reliefs[held_out], labels[held_out]),
    )


def _printed(digit: int) -> Tensor:
    """Draw a digit in Pillow's own typeface, as coarse as the written ones: ``[12, w]``, 0..16."""
    page = Image.new("L", (200, 200))
    ImageDraw.Draw(page).text((60, 40), str(digit), fill="white", font=ImageFont.load_default(100))
    coarse = ImageOps.contain(page.crop(page.getbbox()), (12, 12))
    return torch.tensor(np.asarray(coarse), dtype=torch.float32) * 16 / 255


def _relief(greys: Tensor) -> Tensor:
    """Enlarge one digit's ink to MNIST's box and centre it by mass: ``[8, 8]`` to ``[1, 56, 56]``.

    Two rows and columns of nothing around the ink let the slopes of its strokes run out.
    """
    rows, columns = torch.nonzero(greys.sum(1)).flatten(), torch.nonzero(greys.sum(0)).flatten()
    ink = greys[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] / 16
    scale = 40 / max(ink.shape)
    ink = F.pad(ink, (2, 2, 2, 2))[None, None]
    size = [round(edge * scale) for edge in ink.shape[2:]]
    large = F.interpolate(ink, size=size, mode="bicubic", align_corners=False).clamp(0, 1)[0]
    return _centred(large)


def _centred(ink: Tensor) -> Tensor:
    """Paste ``[1, h, w]`` into ``[1, 56, 56]``, its centre of mass in the middle."""
    _, height, width = ink.shape
    mass = ink[0] / ink.sum()
    down = float((mass.sum(1) * (torch.arange(height) + 0.5)).sum())
    across = float((mass.sum(0) * (torch.arange(width) + 0.5)).sum())
    wide = F.pad(ink, (RELIEF,) * 4)
    top, left = round(down + RELIEF / 2), round(across + RELIEF / 2)
    return wide[:, top : top + RELIEF, left : left + RELIEF]


def pictures(digits: Digits) -> Tensor:
    """Cut the reliefs as they are: uint8 ``[n, 28, 28]``, white on black, as MNIST has them."""
    greys = F.avg_pool2d(_cut(digits.reliefs, CUT, SOFTNESS), 2)
    return (greys * 255).round().to(torch.uint8).squeeze(1)


def _cut(reliefs: Tensor, height: Tensor | float, softness: Tensor | float) -> Tensor:
    """Strokes in 0..1, half white where the relief has ``height``, fading over ``softness``."""
    return ((reliefs - height) / softness + 0.5).clamp(0, 1)


def normalised(greys: Tensor) -> Tensor:
    """What the network reads: float32 ``[n, 1, 28, 28]`` of uint8 ``[n, 28, 28]``."""
    return ((greys.float() / 255 - MEAN) / STD).unsqueeze(1)


def varied(digits: Digits) -> Tensor:
    """Draw every digit anew, as another hand might, and normalise: ``[n, 1, 28, 28]``.

    Moves, scales, turns and shears it, bends its strokes, and changes their width and sharpness.
    One in eight is left in 0..1: clients send such tensors, and they should be read as well.
    """
    reliefs = _with_feet(digits)
    bent = F.grid_sample(reliefs, _grid(len(reliefs)), align_corners=False)
    strokes = _cut(bent, _uniform(len(bent), 0.25, 0.75), _uniform(len(bent), 0.1, 0.4))
    greys = F.avg_pool2d(strokes * _uniform(len(bent), 0.7, 1.0), 2)
    greys = torch.where(_uniform(len(bent), 0, 1) < 0.3, _blurred(greys), greys)
    return torch.where(_uniform(len(bent), 0, 1) < 0.125, greys, (greys - MEAN) / STD)


def _with_feet(digits: Digits) -> Tensor:
    """Put a foot under every third one: typefaces do, and none of this set's writers did."""
    footed = (digits.labels == 1) & (torch.rand(len(digits.labels)) < 1 / 3)
    foot = torch.zeros(RELIEF, RELIEF)
    foot[43:48, 15:41] = 1
    return torch.where(footed[:, None, None, None], digits.reliefs.maximum(foot), digits.reliefs)


def _grid(count: int) -> Tensor:
    """Where each pixel is taken from, in -1..1: ``[count, 56, 56, 2]``."""
    angle, shear, right, down = (_uniform(count, -r, r).flatten() for r in (0.26, 0.45, 0.12, 0.12))
    wide, high = _uniform(count, 0.6, 1.25).flatten(), _uniform(count, 0.9, 1.2).flatten()
    across = torch.stack([wide * angle.cos(), wide * (shear - angle.sin()), right], 1)
    downward = torch.stack([high * angle.sin(), high * angle.cos(), down], 1)
    affine = torch.stack([across, downward], 1)
    straight = F.affine_grid(affine, [count, 1, RELIEF, RELIEF], align_corners=False)
    bends = F.interpolate(
        torch.randn(count, 2, 4, 4) * 0.06, size=RELIEF, mode="bicubic", align_corners=True
    )
    return straight + bends.permute(0, 2, 3, 1)


def _uniform(count: int, low: float, high: float) -> Tensor:
    return torch.rand(count, 1, 1, 1) * (high - low) + low


def _blurred(greys: Tensor) -> Tensor:
    return F.avg_pool2d(greys, 3, stride=1, padding=1)
