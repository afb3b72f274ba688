"""Pixels of images as one batch of floats, bit-identical to ToTensor and Normalize."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from PIL import Image

from kserve_torch.handler.tensors import is_cuda

#: Mean and standard deviation, per channel or for all, as Normalize has them.
Scale = tuple[tuple[float, ...], tuple[float, ...]]

#: Bytes of a batch up to which each byte is looked up in a table: so small a batch costs less than
#: the overhead of torch's operators.
FEW = 16 * 1024


def to_batch(
    images: Sequence[Image.Image],
    channels: int,
    scale: Scale | None,
    device: torch.device | str | int | None = None,
) -> torch.Tensor:
    """Images of one size as ``[rows, channels, height, width]`` of the default dtype.

    Args:
        images: at least one, of 8 bits per channel.
        channels: of each image.
        scale: of the Normalize that follows, or None.
        device: where the result is for. A GPU gets the bytes, a quarter of the floats, and computes
            them, unless they are few; all else stays on the CPU.
    """
    width, height = images[0].size
    shape = (len(images), height, width, channels)
    floats = torch.get_default_dtype()
    if math.prod(shape) <= FEW and floats is torch.float32:
        pixels = b"".join([image.tobytes() for image in images])
        return _looked_up(np.frombuffer(pixels, np.uint8).reshape(shape), _table(channels, scale))
    return _computed(_bytes_of(images, shape, device), scale, floats)


def _bytes_of(
    images: Sequence[Image.Image],
    shape: tuple[int, ...],
    device: torch.device | str | int | None,
) -> torch.Tensor:
    """The images' bytes; on a GPU by way of pinned memory, from which no copy waits."""
    for_gpu = is_cuda(device)
    batch = torch.empty(shape, dtype=torch.uint8, device="cpu", pin_memory=for_gpu)
    for row, image in zip(batch.view(len(images), -1).numpy(), images, strict=True):
        row[:] = np.frombuffer(image.tobytes(), np.uint8)
    return batch.to(device, non_blocking=True) if for_gpu else batch


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
    batch = pixels.permute(0, 3, 1, 2).to(floats, memory_format=torch.contiguous_format)
    # Not by a number: GPUs would multiply by its reciprocal, which rounds otherwise.
    batch.div_(_per_channel((255.0,), floats, pixels.device))
    if scale is not None:
        mean, std = (_per_channel(values, floats, pixels.device) for values in scale)
        batch.sub_(mean).div_(std)
    return batch


@lru_cache(maxsize=64)
def _per_channel(
    values: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The values as a tensor for batches; cached, because a copy to a GPU would wait for it."""
    return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)
