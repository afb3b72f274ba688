"""Convolutional models on the CPU use the channels-last memory format: the same answers, sooner.

torch computes convolutions and pooling fastest in that format: torchvision's models take between
half of the time and all of it. But a model may rely on the default format, most often by
``x.view(n, -1)``, so the first batch is tried on a copy of the model.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from kserve_torch.runtime.tying import are_tied, is_plain, tie

log = logging.getLogger(__name__)

#: Largest difference between the answers in both formats, relative to the largest number.
TOLERANCE = 1e-5
#: Most bytes of convolution weights and buffers for a trial, during which they are held twice.
LARGEST = 256 * 2**20
#: Batches that the model may refuse before there are no more trials.
TRIES = 3
#: How ``Tensor.view`` begins to say that it cannot take this memory format.
_NEEDS_CONTIGUOUS = "view size is not compatible"

#: Models in channels-last format; several instances of one share their weights.
_rearranged: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_lock = threading.Lock()


class ChannelsLast:
    """Calls a model in channels-last format, once a batch has shown that this changes nothing.

    Args:
        model: float32, in evaluation mode, on the CPU, with two-dimensional convolutions, and no
            more than `LARGEST` bytes to be copied; any other is called as it is.

    Attributes:
        model: the model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._tries = TRIES if _is_suitable(model) else 0
        self._chosen = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output, its tensors contiguous.

        Raises:
            Exception: whatever the model raises.
        """
        if self._tries and args and not kwargs and all(map(_is_image_batch, args)):
            return self._try(*args)
        if not self._chosen:
            return self.model(*args, **kwargs)
        try:
            return _contiguous(self.model(*(_last(value) for value in args), **kwargs))
        except RuntimeError as error:
            if not self.give_up(error):
                raise
        return self.model(*args, **kwargs)

    def give_up(self, error: BaseException | None) -> bool:
        """Return to the default format if it is in use and ``error`` asks for the other one."""
        wanted = isinstance(error, RuntimeError) and _NEEDS_CONTIGUOUS in str(error)
        if not (self._chosen and wanted):
            return False
        log.info("the model keeps the default memory format: %s", error)
        self._chosen = False
        _rearrange(self.model, _twins(self.model, torch.contiguous_format))
        return True

    def _try(self, *args: torch.Tensor) -> Any:
        self._tries -= 1
        try:
            twins = _twins(self.model, torch.channels_last)
            twin = _copy(self.model, twins)
            inputs = [value.clone(memory_format=torch.channels_last) for value in args]
        except Exception as error:  # a model may hold anything, also what cannot be copied
            log.info("the model keeps the default memory format: %s", error)
            self._tries = 0
            return self.model(*args)
        expected = self.model(*args)  # if it refuses this batch, the next one may decide
        tries, self._tries = self._tries, 0
        try:
            output = _contiguous(twin(*inputs))
            self._chosen = _agree(output, expected)
        except _NothingToCompare:
            self._tries = tries
        except Exception as error:
            log.info("the model keeps the default memory format: %s", error)
        if not self._chosen:
            return expected
        _rearrange(self.model, twins)
        log.info("the model uses the channels-last memory format")
        return output


def _is_suitable(model: Any) -> bool:
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return False
    if model.training or hasattr(model, "_orig_mod"):  # the latter is from torch.compile
        return False
    modules = list(model.modules())
    copied = [*(each for each in model.parameters() if each.dim() == 4), *model.buffers()]
    return (
        any(type(module) in (nn.Conv2d, nn.ConvTranspose2d) for module in modules)
        and not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
        and all(_is_plain_float32(parameter) for parameter in model.parameters())
        and sum(tensor.nbytes for tensor in copied) <= LARGEST
    )


def _is_plain_float32(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.device.type == "cpu" and tensor.dtype is torch.float32


def _is_image_batch(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 4 and _is_plain_float32(value)


def _last(value: Any) -> Any:
    # Always a copy, also if both formats are the same, as with one channel: a model may change its
    # input, and gets it again in the default format if it refuses this one.
    return value.clone(memory_format=torch.channels_last) if _is_image_batch(value) else value


@torch.inference_mode(False)
@torch.no_grad()
def _twins(model: nn.Module, order: torch.memory_format) -> dict[int, torch.Tensor]:
    """Each parameter's twin by its ``id``: itself, or a copy if the format matters."""
    return {
        id(tensor): nn.Parameter(tensor.contiguous(memory_format=order), tensor.requires_grad)
        if tensor.dim() == 4
        else tensor
        for tensor in model.parameters()
    }


@torch.inference_mode(False)
def _copy(model: nn.Module, twins: dict[int, torch.Tensor]) -> nn.Module:
    return copy.deepcopy(model, {**twins})


@torch.inference_mode(False)
def _rearrange(model: nn.Module, twins: dict[int, torch.Tensor]) -> None:
    """Make ``model`` hold the twins, or those that another instance of it holds already."""
    for parameter in model.parameters():
        parameter.data = twins[id(parameter)].data
    with _lock:
        for other in _rearranged:
            if other is not model and are_tied(other, model):
                tie([model], [other])
        _rearranged.add(model)


class _NothingToCompare(Exception):
    """Both answers are empty, as a detector's are for a picture without objects."""


def _agree(output: Any, expected: Any) -> bool:
    given, wanted = list(_tensors(output)), list(_tensors(expected))
    if not any(tensor.numel() for tensor in (*given, *wanted)):
        raise _NothingToCompare
    return len(given) == len(wanted) and all(map(_close, given, wanted))


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, list | tuple | dict):
        for item in output.values() if isinstance(output, dict) else output:
            yield from _tensors(item)
    else:
        raise TypeError(f"an output of type {type(output).__name__} cannot be compared")


def _close(given: torch.Tensor, wanted: torch.Tensor) -> bool:
    if (given.shape, given.dtype) != (wanted.shape, wanted.dtype):
        return False
    if not wanted.is_floating_point():
        return torch.equal(given, wanted)
    size = wanted.abs().nan_to_num(0, posinf=0).amax().item() if wanted.numel() else 0.0
    return torch.allclose(given, wanted, rtol=TOLERANCE, atol=TOLERANCE * size, equal_nan=True)


def _contiguous(output: Any) -> Any:
    """The output in the default format: handlers may call ``view`` on its tensors."""
    if isinstance(output, torch.Tensor):
        return output.contiguous()
    if isinstance(output, list | tuple):
        items = [_contiguous(item) for item in output]
        if all(item is before for item, before in zip(items, output, strict=True)):
            return output
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    if isinstance(output, dict):
        for key, value in output.items():
            output[key] = _contiguous(value)
    return output
