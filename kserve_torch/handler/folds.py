"""Convolutions with the weights of the batch norms after them, for as long as nothing changes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from kserve_torch.handler.trial import has_hooks
from kserve_torch.runtime import paramdata
from kserve_torch.runtime.tying import are_tied

#: Parameters or buffers of a module.
Table = dict[str, torch.Tensor | None]
#: ``call``: the call of `Folds.run` in this thread, or None.
_thread = threading.local()
#: Those in use by model; several instances of one share theirs.
_known: weakref.WeakKeyDictionary[nn.Module, Folds] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Misused(Exception):
    """The output of a folded convolution went elsewhere than to its batch norm."""


class Fold:
    """The weights of one convolution with its batch norm.

    Attributes:
        key: that of the `Folds` which it belongs to.
        weight: float32 ``[out channels, in channels / groups, height, width]``.
        bias: float32 ``[out channels]``.
    """

    def __init__(self, key: object, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.key = key
        self.weight = weight
        self.bias = bias


class _Call:
    """One call of `Folds.run`.

    Attributes:
        key: that of the `Folds`.
        left: how many outputs of folded convolutions somebody holds.
    """

    def __init__(self, key: object) -> None:
        self.key = key
        self.left = 0


class _Normalized:
    """A folded convolution's output; no tensor, so that nothing but its batch norm can use it."""

    __slots__ = ("call", "fold", "tensor")

    def __init__(self, tensor: torch.Tensor, fold: Fold, call: _Call) -> None:
        self.tensor = tensor
        self.fold = fold
        self.call = call
        call.left += 1

    def __del__(self) -> None:
        self.call.left -= 1


class Conv2d(nn.Conv2d):
    """A convolution that can do the work of the batch norm after it."""

    def forward(self, input: torch.Tensor) -> Any:
        """Convolve; during a call of `Folds.run` with the folded weights."""
        fold, call = self.__dict__.get("_fold"), getattr(_thread, "call", None)
        if fold is None or call is None or fold.key is not call.key:
            return super().forward(input)
        return _Normalized(self._conv_forward(input, fold.weight, fold.bias), fold, call)


class BatchNorm2d(nn.BatchNorm2d):
    """A batch norm whose work the convolution before it may have done."""

    def forward(self, input: Any) -> torch.Tensor:
        """Normalize what is not normalized yet."""
        if type(input) is not _Normalized:
            return super().forward(input)
        if input.fold is not self.__dict__.get("_fold"):
            raise Misused
        return input.tensor


class Folds:
    """The folded weights of a model.

    Args:
        model: the model.
        names: the convolutions and batch norms to be folded, by their names in the model.
    """

    def __init__(self, model: nn.Module, names: Sequence[tuple[str, str]]) -> None:
        self._names = names
        self._key = object()
        self._pairs: list[tuple[Any, Any]] = [
            (model.get_submodule(conv), model.get_submodule(norm)) for conv, norm in names
        ]
        self._modules = [module for pair in self._pairs for module in pair]
        self._tensors = [held for pair in self._pairs for held in _held(*pair)]
        for _, _, tensor in self._tensors:
            paramdata.count(tensor, True)
        self._state = self._look()
        with _lock:
            self._folds = self._of_another(model) or [
                Fold(self._key, *folded(*pair)) for pair in self._pairs
            ]

    def _of_another(self, model: nn.Module) -> list[Fold]:
        """Those of another instance with the same weights, if there is one; else none."""
        for other, folds in _known.items():
            if are_tied(other, model) and folds.are_current and self._equals(folds):
                return [Fold(self._key, fold.weight, fold.bias) for fold in folds._folds]
        return []

    def _equals(self, other: Folds) -> bool:
        """Whether another model's convolutions hold the same weights, and the rest is equal."""
        ours, theirs = self._tensors, other._tensors
        return (
            self._names == other._names
            and self._state[0] == other._state[0]
            and len(ours) == len(theirs)
            and all(torch.equal(one[2], two[2]) for one, two in zip(ours, theirs, strict=True))
        )

    @property
    def are_current(self) -> bool:
        """Whether the modules hold the same numbers still, are evaluated, and have no hooks."""
        same = all(table.get(name) is tensor for table, name, tensor in self._tensors)
        return same and self._look() == self._state

    def _look(self) -> tuple[Any, ...]:
        return (
            [conv._parameters["weight"].data_ptr() for conv, _ in self._pairs],
            [tensor._version for _, _, tensor in self._tensors],
            any(norm.training for _, norm in self._pairs),
            has_hooks(self._modules),
        )

    def on(self, model: nn.Module) -> Folds:
        """Let the model, or a copy, use them during `run`; other threads may be calling it."""
        for (conv_name, norm_name), fold in zip(self._names, self._folds, strict=True):
            conv, norm = model.get_submodule(conv_name), model.get_submodule(norm_name)
            norm._fold = fold  # type: ignore[assignment]
            norm.__class__ = BatchNorm2d  # first: it knows what a folded convolution returns
            conv._fold = fold  # type: ignore[assignment]
            conv.__class__ = Conv2d
        return self

    def offer(self, model: nn.Module) -> None:
        """Let other instances of the model use them too."""
        with _lock:
            _known[model] = self

    def off(self, model: nn.Module) -> None:
        """Let the model forget them; a call of `run` in another thread may raise `Misused`."""
        with _lock:
            _known.pop(model, None)
        for module in self._modules:
            module.__dict__.pop("_fold", None)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What ``function`` returns; the model, where it calls it, uses the folded weights.

        Raises:
            Misused: the model does not use a convolution's output as it did when it was observed.
            Exception: the same, or whatever ``function`` raises.
        """
        before = getattr(_thread, "call", None)
        _thread.call = call = _Call(self._key)
        try:
            output = function(*args, **kwargs)
        finally:
            _thread.call = before
        if call.left:
            raise Misused
        return output


def _held(conv: nn.Module, norm: nn.Module) -> Iterator[tuple[Table, str, torch.Tensor]]:
    """The tensors that are folded, each with the table and the name by which a module holds it."""
    tables: tuple[Any, ...] = (conv._parameters, norm._parameters, norm._buffers)
    for table in tables:
        for name, tensor in table.items():
            if tensor is not None and tensor.is_floating_point():  # not a count of batches
                yield table, name, tensor


def are_foldable(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether both are torch's own, know what to do by themselves, and torch counts writes."""
    return (
        type(conv) in (nn.Conv2d, Conv2d)
        and type(norm) in (nn.BatchNorm2d, BatchNorm2d)
        and norm.running_mean is not None
        and not any(tensor.is_inference() for _, _, tensor in _held(conv, norm))
    )


@torch.inference_mode(False)
@torch.no_grad()
def folded(conv: Any, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a convolution that does the work of both."""
    factor = (norm.running_var.double() + norm.eps).rsqrt()
    bias = -norm.running_mean * factor
    if conv.bias is not None:
        bias += conv.bias * factor
    if norm.affine:
        factor, bias = factor * norm.weight, bias * norm.weight + norm.bias
    return conv.weight * factor.float().view(-1, 1, 1, 1), bias.float()
