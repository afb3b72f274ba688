"""Pixels of images as one batch of floats, bit-identical to ToTensor and Normalize."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from PIL import Image

#: Mean and standard deviation, per channel or for all, as Normalize has them.
Scale = tuple[tuple[float, ...], tuple[float, ...]]

#: Bytes of a batch up to which each byte is looked up in a table: so small a batch costs less than
#: the overhead of torch's operators.
FEW = 16 * 1024


def to_batch(images: Sequence[Image.Image], channels: int, scale: Scale | None) -> torch.Tensor:
    """Images of one size as ``[rows, channels, height, width]`` of the default dtype.

    Args:
        images: at least one, of 8 bits per channel.
        channels: of each image.
        scale: of the Normalize that follows, or None.
    """
    width, height = images[0].size
    pixels = bytearray().join([image.tobytes() for image in images])
    shape = (len(images), height, width, channels)
    if len(pixels) <= FEW and torch.get_default_dtype() is torch.float32:
        return _looked_up(np.frombuffer(pixels, np.uint8).reshape(shape), _table(channels, scale))
    bytes_ = torch.frombuffer(pixels, dtype=torch.uint8).view(shape)
    return _computed(bytes_, scale, torch.get_default_dtype())


def _looked_up(pixels: np.ndarray, table: np.ndarray) -> torch.Tensor:
    rows, height, width, channels = pixels.shape
    if channels == 1:
        floats = table[0].take(pixels, mode="clip").reshape(rows, 1, height, width)
        return torch.from_numpy(floats)
    batch = np.empty((rows, channels, height, width), table.dtype)
    for channel, values in enumerate(table):
        batch[:, channel] = values.take(pixels[..., channel], mode="clip")
    return torch.from_numpy(batch)


@lru_cache(maxsize=64)
def _table(channels: int, scale: Scale | None) -> np.ndarray:
    """The result for each byte, by channel: float32 ``[channels, 256]``."""
    every = torch.arange(256, dtype=torch.uint8, device="cpu").view(1, 1, 256, 1)
    computed = _computed(every.expand(1, 1, 256, channels), scale, torch.float32)
    return computed.view(channels, 256).numpy()


def _computed(pixels: torch.Tensor, scale: Scale | None, floats: torch.dtype) -> torch.Tensor:
    """The result for bytes ``[rows, height, width, channels]``, by torch's operators."""
    batch = pixels.permute(0, 3, 1, 2).to(floats, memory_format=torch.contiguous_format).div_(255)
    if scale is not None:
        mean, std = (_per_channel(values, floats) for values in scale)
        batch.sub_(mean).div_(std)
    return batch


def _per_channel(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    # Images are in the host's memory; a handler's default device may be another one.
    return torch.tensor(values, dtype=dtype, device="cpu").view(-1, 1, 1)
