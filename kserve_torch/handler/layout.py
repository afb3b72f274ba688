"""Convolutional models on the CPU use the channels-last memory format: the same answers, sooner.

torch computes convolutions and pooling fastest in that format: torchvision's models take between
half of the time and all of it. But a model may rely on the default format, most often by
``x.view(n, -1)``, so the first batch is tried on a copy of the model.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from kserve_torch.handler.trial import (
    TRIES,
    NothingToCompare,
    agree,
    copy_of,
    is_image_batch,
    is_suitable,
)
from kserve_torch.runtime.tying import are_tied, tie

log = logging.getLogger(__name__)

#: Most bytes of convolution weights and buffers for a trial, during which they are held twice.
LARGEST = 256 * 2**20
_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
#: How ``Tensor.view`` begins to say that it cannot take this memory format.
_NEEDS_CONTIGUOUS = "view size is not compatible"


class _Callers:
    """The threads that are calling a model, whose weights nobody may move meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether the caller is the only one; further ones wait until the end of the block."""
        with self._lock:
            yield self._count == 1


#: By model: a handler may keep one for all its instances, or call it on threads of its own.
_callers: weakref.WeakKeyDictionary[Any, _Callers] = weakref.WeakKeyDictionary()
#: Models in channels-last format; several instances of one share their weights.
_rearranged: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_lock = threading.Lock()


class ChannelsLast:
    """Calls a model in channels-last format, once a batch has shown that this changes nothing.

    Args:
        model: float32, in evaluation mode, on the CPU, with two-dimensional convolutions, and no
            more than `LARGEST` bytes to be copied; any other is called as it is.

    Attributes:
        is_chosen: whether it is in channels-last format.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._tries = TRIES if _is_suitable(model) else 0
        self.is_chosen = False
        with _lock:
            self._callers = _callers.setdefault(model, _Callers()) if self._tries else _Callers()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output, its tensors contiguous."""
        with self._callers:
            return self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if self._tries and not kwargs and all(map(is_image_batch, args)):
            return self._try(*args)
        if not self.is_chosen:
            return self.model(*args, **kwargs)
        try:
            return _contiguous(self.model(*(_last(value) for value in args), **kwargs))
        except RuntimeError as error:
            if not self.give_up(error):
                raise
        return self.model(*args, **kwargs)

    @property
    def is_decided(self) -> bool:
        """Whether there will be no more trials."""
        return not self._tries

    def give_up(self, error: BaseException | None) -> bool:
        """Return to the default format if it is in use and ``error`` asks for the other one."""
        if not (self.is_chosen and _NEEDS_CONTIGUOUS in str(error)):
            return False
        log.info("the model keeps the default memory format: %s", error)
        self.is_chosen = False
        _rearrange(self.model, _twins(self.model, torch.contiguous_format))
        return True

    def _try(self, *args: torch.Tensor) -> Any:
        self._tries -= 1
        try:
            twins = _twins(self.model, torch.channels_last)
            twin = copy_of(self.model, twins)
            inputs = [value.clone(memory_format=torch.channels_last) for value in args]
        except Exception as error:  # a model may hold anything, also what cannot be copied
            log.info("the model keeps the default memory format: %s", error)
            self._tries = 0
            return self.model(*args)
        expected = self.model(*args)  # if it raises, the next batch may decide
        tries, self._tries = self._tries, 0
        try:
            output = _contiguous(twin(*inputs))
            if not agree(output, expected):
                return expected
        except NothingToCompare:
            self._tries = tries
            return expected
        except Exception as error:
            log.info("the model keeps the default memory format: %s", error)
            return expected
        with self._callers.alone() as alone:
            if not alone:  # the next batch may decide
                self._tries = tries
                return expected
            _rearrange(self.model, twins)
        self.is_chosen = True
        log.info("the model uses the channels-last memory format")
        return output


def _is_suitable(model: Any) -> bool:
    if not is_suitable(model):
        return False
    copied = [*(each for each in model.parameters() if each.dim() == 4), *model.buffers()]
    return (
        any(map(_is_convolution, model.modules()))
        and sum(tensor.nbytes for tensor in copied) <= LARGEST
    )


def _is_convolution(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, "original_name", "") in {kind.__name__ for kind in _CONVOLUTIONS}
    return isinstance(module, _CONVOLUTIONS)


def _last(value: Any) -> Any:
    # Always a copy, also if both formats are the same, as with one channel: a model may change its
    # input, and gets it again in the default format if it refuses this one.
    return value.clone(memory_format=torch.channels_last) if is_image_batch(value) else value


@torch.inference_mode(False)
def _twins(model: nn.Module, order: torch.memory_format) -> dict[int, torch.Tensor]:
    """The twins of those parameters for which the format matters, by their ``id``."""
    return {
        id(tensor): nn.Parameter(tensor.contiguous(memory_format=order), tensor.requires_grad)
        for tensor in model.parameters()
        if tensor.dim() == 4
    }


def _rearrange(model: nn.Module, twins: dict[int, torch.Tensor]) -> None:
    """Make ``model`` hold the twins, or those that another instance of it holds already."""
    for parameter in model.parameters():
        if (twin := twins.get(id(parameter))) is not None:
            parameter.data = twin.data
    with _lock:
        for other in _rearranged:
            if are_tied(other, model):
                tie([model], [other])
        _rearranged.add(model)


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
