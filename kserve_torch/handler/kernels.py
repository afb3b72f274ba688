"""Weight and bias of a convolution that does the work of the batch norm after it, too.

oneDNN, which computes convolutions on the CPU, reads weights in a layout of its own. torch brings
them into it in every call: for one picture that takes a quarter of ResNet-18's time, for eight a
tenth. Here they are packed once, for pictures of the size that the model gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kserve_torch.runtime import torchstate

#: Numbers of rows for which oneDNN is asked: it may prefer one layout for a single row, and another
#: one for many.
ROWS = (1, 16)


class Kernel:
    """What a convolution computes with, in the place of its own weight and bias; all float32.

    Args:
        size: ``[in channels, height, width]`` of the images for which to pack the weight, if any.
    """

    def __init__(self, conv: Any, norm: Any, size: torch.Size | None) -> None:
        weight, self._bias = folded(conv, norm)
        self._size = size
        self._packed = None if size is None else packed(conv, weight, size)
        #: ``[out channels, in channels / groups, height, width]``; None until it is needed.
        self._weight = weight if self._packed is None else None

    def convolve(self, conv: Any, norm: Any, images: torch.Tensor) -> torch.Tensor:
        """The output of both modules, which are what they were."""
        output: torch.Tensor
        if self._packed is not None and images.shape[1:] == self._size:
            output = torch.ops.mkldnn._convolution_pointwise(
                images, self._packed, self._bias, *_options(conv), "none", [], ""
            )
            return output
        if self._weight is None:
            self._weight, _ = folded(conv, norm)
        output = conv._conv_forward(images, self._weight, self._bias)
        return output


def folded(conv: Any, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a convolution that does the work of both."""
    factor = (norm.running_var.double() + norm.eps).rsqrt()
    bias = -norm.running_mean * factor
    if conv.bias is not None:
        bias += conv.bias * factor
    if norm.affine:
        factor, bias = factor * norm.weight, bias * norm.weight + norm.bias
    return conv.weight * factor.float().view(-1, 1, 1, 1), bias.float()


def packed(conv: Any, weight: torch.Tensor, size: torch.Size) -> torch.Tensor | None:
    """``weight`` in oneDNN's layout; None if that depends on more than the images' size.

    Batches have different numbers of rows, and the number of intra-op threads is tuned. A weight in
    the wrong layout would be rearranged in every call, which takes longer than for an ordinary one.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        return None
    arranged = []
    for threads in {1, torchstate.THREADS}:
        with _threads(threads):
            arranged += [
                torch.ops.mkldnn._reorder_convolution_weight(weight, *_options(conv), [rows, *size])
                for rows in ROWS
            ]
    return arranged[0] if len(set(map(_layout, arranged))) == 1 else None


def _layout(arranged: torch.Tensor) -> bytes:
    return bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(arranged).tolist())


def _options(conv: Any) -> tuple[Any, ...]:
    return conv.padding, conv.stride, conv.dilation, conv.groups


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torchstate.use_threads(count)
    try:
        yield
    finally:
        torchstate.use_threads(before)
