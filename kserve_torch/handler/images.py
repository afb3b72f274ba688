"""Images: bytes to PIL, PIL to tensors; the commonest pipeline for a whole batch at once."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from PIL import Image
from torchvision import transforms

from kserve_torch.errors import BadRow
from kserve_torch.handler.rows import from_base64, is_base64

#: PIL modes of 8 bits per channel whose pixels `to_tensor_batch` reads as ToTensor does.
_CHANNELS = {"L": 1, "RGB": 3}
_BOMB = (Image.DecompressionBombError, Image.DecompressionBombWarning)


def decode_image(index: int, data: Any) -> Image.Image:
    """Bytes, or base64 text of them, as an image with its pixels read.

    Raises:
        BadRow: not base64, not an image, or one of more pixels than PIL's limit.
    """
    encoded = data
    if isinstance(data, str):
        encoded = from_base64(data)
        if encoded is None:
            raise BadRow(index, "data: not valid base64")
    try:
        image = Image.open(io.BytesIO(encoded))
        image.load()
    except _BOMB:
        raise BadRow(index, "data: the image has too many pixels") from None
    except MemoryError:
        raise
    except Exception as error:  # PIL's readers raise nearly anything on damaged files
        text = isinstance(data, str) and not is_base64(data)
        reason = "not valid base64" if text else "not a decodable image"
        raise BadRow(index, f"data: {reason}") from error
    return image


class ToRGB:
    """A transform: any image as RGB, for models that know nothing else."""

    def __call__(self, image: Image.Image) -> Image.Image:
        """``image`` itself if it is RGB already."""
        return image if image.mode == "RGB" else image.convert("RGB")

    def __repr__(self) -> str:
        return "ToRGB()"


def to_tensors(
    images: Sequence[Image.Image], processing: Callable[[Any], Any]
) -> Sequence[torch.Tensor] | torch.Tensor:
    """``processing`` of each image; the commonest transforms at once, with bitwise the same result.

    Returns:
        A sequence of tensors ``[channels, height, width]``, or one tensor of them all.
    """
    first = images[0]
    alike = all(image.mode == first.mode and image.size == first.size for image in images)
    if alike and first.mode in _CHANNELS:
        steps = _known_steps(processing, _CHANNELS[first.mode])
        if steps is not None:
            batch = to_tensor_batch(images)
            for normalize in steps:
                batch.sub_(_per_channel(normalize.mean)).div_(_per_channel(normalize.std))
            return batch
    return [processing(image) for image in images]


def _known_steps(processing: Any, channels: int) -> list[transforms.Normalize] | None:
    """What follows ToTensor if ``processing`` is it alone, or with one Normalize, in a Compose.

    None for all other transforms, subclasses of these included: their code must be called.
    """
    if type(processing) is not transforms.Compose or not processing.transforms:
        return None
    first, *rest = processing.transforms
    if type(first) is not transforms.ToTensor or len(rest) > 1:
        return None
    known = all(type(step) is transforms.Normalize and _fits(step, channels) for step in rest)
    return rest if known else None


def _fits(normalize: transforms.Normalize, channels: int) -> bool:
    """Whether mean and std are lists for so many channels, without a 0 that torchvision refuses."""
    mean, std = normalize.mean, normalize.std
    lists = isinstance(mean, (list, tuple)) and isinstance(std, (list, tuple))
    return lists and len(mean) in (1, channels) and len(std) in (1, channels) and all(std)


def _per_channel(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, 1, 1)


def to_tensor_batch(images: Sequence[Image.Image]) -> torch.Tensor:
    """ToTensor of images of one size and mode: ``[rows, channels, height, width]`` in [0, 1]."""
    width, height = images[0].size
    pixels = bytearray().join([image.tobytes() for image in images])
    shape = (len(images), height, width, _CHANNELS[images[0].mode])
    batch = torch.frombuffer(pixels, dtype=torch.uint8).view(shape).permute(0, 3, 1, 2)
    floats = torch.get_default_dtype()
    return batch.to(floats, memory_format=torch.contiguous_format).div_(255)
