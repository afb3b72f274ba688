"""Images: bytes to PIL, PIL to tensors; the most common transforms as one batch."""

from __future__ import annotations

import binascii
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import takewhile
from numbers import Real
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torchvision import transforms

from kserve_torch.codec.document import from_base64
from kserve_torch.errors import BadRow, InvalidInput
from kserve_torch.handler.pixels import to_batch
from kserve_torch.handler.png import read_plain_png

#: PIL modes of 8 bits per channel whose pixels `to_batch` reads as ToTensor does.
_CHANNELS = {"L": 1, "RGB": 3}
_TO_NORMALIZED = [transforms.ToTensor, transforms.Normalize]
#: Transforms of single images that release the GIL for most of their time.
_PARALLEL = (transforms.Resize, transforms.CenterCrop, transforms.Pad, transforms.Grayscale)
#: Bytes of an image, on average, from which several threads pay off: a JPEG of 640 x 480 pixels.
#: With smaller ones they compete with the intra-op threads, which spin after each forward pass.
LARGE = 64 * 1024
#: The same where a GPU computes: the cores have nothing else to do.
LARGE_BESIDE_GPUS = 4 * 1024
_BOMB = (Image.DecompressionBombError, Image.DecompressionBombWarning)


class NotAnImage(BadRow, UnidentifiedImageError):
    """A row holds no image that can be decoded; handlers may catch it as they catch PIL's error."""


def decode_image(index: int, data: Any) -> Image.Image:
    """Bytes, or base64 text of them, as an image with its pixels read.

    Raises:
        BadRow: not base64, not an image, or one of more pixels than PIL's limit.
    """
    try:
        # As TorchServe: leniently, so that white space, too, costs nothing.
        encoded = binascii.a2b_base64(data) if isinstance(data, str) else data
        image = read_plain_png(encoded)
        if image is None:
            image = Image.open(io.BytesIO(encoded))
            image.load()
    except _BOMB:
        raise _too_many_pixels(index) from None
    except MemoryError:
        raise
    except Exception as error:  # PIL's readers raise nearly anything on damaged files
        if isinstance(data, str) and from_base64(data) is None:
            raise BadRow(index, "data: not valid base64") from error
        raise NotAnImage(index, "data: not a decodable image") from error
    return image


def decode_images(
    encoded: Mapping[int, Any],
    processing: Callable[[Any], Any],
    pool: Executor | None,
    large: int = LARGE,
) -> tuple[list[Image.Image], Callable[[Any], Any]]:
    """The rows' images after the first steps of ``processing``, and the remaining steps.

    An image that a first Resize would make too large counts as one of too many pixels.

    Args:
        encoded: by row, an image file's bytes or base64 text of them; see `decode_image`.
        processing: the transforms for each image.
        pool: threads that decode large images, and do their first steps, in parallel.
        large: bytes from which on an image is large, on average.

    Raises:
        BadRow: an image cannot be decoded, or a first step refuses it.
    """
    first, rest = _begin(processing)
    edge = _shorter_edge(first)

    def begun(row: tuple[int, Any]) -> Any:
        image: Any = _decode_to_resize(*row, edge)
        try:
            for step in first:
                image = step(image)
        except InvalidInput as error:
            raise BadRow(row[0], str(error)) from None
        return image

    few = sum(map(len, encoded.values())) < large * len(encoded)
    run = map if pool is None or len(encoded) < 2 or few else pool.map
    return list(run(begun, encoded.items())), rest


def _shorter_edge(first: Sequence[Any]) -> int | None:
    """The length to which the first steps resize the shorter edge of decoded images, if any."""
    steps = (step for step in first if type(step) not in _SAME_SIZE)
    step: Any = next(steps, None)
    if type(step) is not transforms.Resize or step.max_size is not None:
        return None
    size = [step.size] if isinstance(step.size, int) else step.size
    return size[0] if len(size) == 1 else None


def _decode_to_resize(index: int, data: Any, edge: int | None) -> Image.Image:
    """`decode_image`; a long strip of few pixels may have thousands of times as many resized."""
    image = decode_image(index, data)
    limit = Image.MAX_IMAGE_PIXELS
    if edge is not None and limit is not None:
        shorter, longer = sorted(image.size)
        if edge * edge * longer > limit * shorter:
            raise _too_many_pixels(index)
    return image


def _too_many_pixels(index: int) -> BadRow:
    return BadRow(index, "data: the image has too many pixels")


def _begin(processing: Any) -> tuple[list[Any], Any]:
    """The first steps of a plain Compose, as far as any thread may run them, and the rest."""
    if type(processing) is not transforms.Compose:
        return [], processing
    kinds = (*_PARALLEL, ToRGB)
    first = list(takewhile(lambda step: type(step) in kinds, processing.transforms))
    return first, transforms.Compose(processing.transforms[len(first) :])


class ToRGB:
    """A transform that converts any image to RGB."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """``image`` itself if it is RGB already.

        Raises:
            InvalidInput: it has 32-bit pixels, whose range is unknown.
        """
        if image.mode == "RGB":
            return image
        if image.mode in ("I", "F"):
            raise InvalidInput("data: expected an image of 8 or 16 bits a channel, got one of 32")
        if image.mode.startswith("I;16"):  # PIL would cut off at 255: nearly all would be white
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert("RGB")

    def __repr__(self) -> str:
        return "ToRGB()"


#: Transforms that change only colours.
_SAME_SIZE = (ToRGB, transforms.Grayscale)


def to_tensors(
    images: Sequence[Image.Image],
    processing: Callable[[Any], Any],
    device: torch.device | str | int | None = None,
) -> Sequence[torch.Tensor] | torch.Tensor:
    """``processing`` of each image; the most common transforms as one batch, bit-identical.

    A Compose that ends with ToTensor, or with it and one Normalize, is split there: the steps
    before are called image by image, the end once for the batch.

    Args:
        images: at least one.
        processing: the transforms for each image.
        device: where the batch is for; see `to_batch`.

    Returns:
        A sequence of tensors ``[channels, height, width]``, or one tensor of them all.
    """
    before, tail = _split(processing)
    if not tail:
        return [processing(image) for image in images]
    for step in before:
        images = [step(image) for image in images]
    channels = _common_channels(images)
    if not channels or not all(_fits(normalize, channels) for normalize in tail[1:]):
        return [transforms.Compose(tail)(image) for image in images]
    scale = (tuple(tail[1].mean), tuple(tail[1].std)) if len(tail) > 1 else None
    return to_batch(images, channels, scale, device)


def _split(processing: Any) -> tuple[list[Any], list[Any]]:
    """The steps before ToTensor, and ToTensor with the Normalize that may follow.

    Both are empty for all other transforms; also for subclasses, whose code must be called.
    """
    if type(processing) is transforms.Compose:
        steps = list(processing.transforms)
        for length, kinds in enumerate(([transforms.ToTensor], _TO_NORMALIZED), 1):
            if [type(step) for step in steps[-length:]] == kinds:
                return steps[:-length], steps[-length:]
    return [], []


def _common_channels(images: Sequence[Any]) -> int:
    """The images' number of channels; 0 unless they have one size and one known mode."""
    first = images[0]
    if not all(isinstance(image, Image.Image) for image in images):
        return 0
    alike = all(image.mode == first.mode and image.size == first.size for image in images)
    return _CHANNELS.get(first.mode, 0) if alike else 0


def _fits(normalize: transforms.Normalize, channels: int) -> bool:
    """Whether mean and std are numbers for this many channels, and no std is 0."""
    mean, std = normalize.mean, normalize.std
    if not (isinstance(mean, (list, tuple)) and isinstance(std, (list, tuple))):
        return False
    numbers = all(isinstance(value, Real) for value in (*mean, *std))
    return numbers and len(mean) in (1, channels) and len(std) in (1, channels) and all(std)
