"""Batch norms on the CPU are folded into the convolutions before them: the same answers, sooner.

A batch norm of a trained model scales and shifts each channel, which the weights and the bias of
the convolution before it can do as well, without another pass over the pixels. The folded weights
are packed for oneDNN, see `kernels`. Together they let torchvision's models answer 1.02 (DenseNet)
to 1.8 times (MobileNetV2) as many pictures a second.

Only within `FoldedNorms.__call__`, and only while nothing has changed: whoever else looks at the
model, calls it, trains it or loads weights into it finds it as it was.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kserve_torch.handler.folds import Folds, Pair, are_foldable
from kserve_torch.handler.layout import ChannelsLast
from kserve_torch.handler.trial import (
    TRIES,
    NothingToCompare,
    agree,
    copy_of,
    is_image_batch,
    is_suitable,
)

log = logging.getLogger(__name__)

#: Most bytes of folded weights, which are held beside the model's own.
LARGEST = 256 * 2**20


class FoldedNorms:
    """Calls a model with its batch norms folded, once a row has shown that this changes nothing.

    Args:
        ordered: calls the model in the memory format that suits it.

    Attributes:
        model: the model. One that `is_suitable` refuses is called as it is, as is one with more
            than `LARGEST` bytes to be folded.
    """

    def __init__(self, ordered: ChannelsLast) -> None:
        self.model = ordered.model
        self._ordered = ordered
        self._tries = TRIES if _may_fold(ordered.model) else 0
        self._folds: Folds | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output."""
        if self._folds is not None:
            return self._run(self._folds, *args, **kwargs)
        row = None
        if self._tries and self._ordered.is_decided and not kwargs:
            row = _first_row(args)
        output = self._ordered(*args, **kwargs)  # if it raises, the next batch may decide
        if row:
            self._try(row)
        return output

    def _run(self, folds: Folds, *args: Any, **kwargs: Any) -> Any:
        try:
            return folds.run(self._ordered, *args, **kwargs)
        except Exception:  # if it raises again, the batch is at fault, else the model has changed
            output = self._ordered(*args, **kwargs)
        log.info("the model is not what it was: its batch norms are no longer folded")
        folds.off()
        self._folds = None
        return output

    def _try(self, row: Sequence[torch.Tensor]) -> None:
        tries, self._tries = self._tries - 1, 0
        try:
            twin = copy_of(self.model)
            pairs, expected = _observe(twin, row, self._ordered.is_chosen)
            if not pairs or _size(twin, pairs) > LARGEST:
                return
            folds = Folds(self.model, pairs)
            if agree(_tried(Folds(twin, pairs, like=folds), twin, row), expected):
                folds.on()
                folds.offer()
                self._folds = folds
                log.info("the model's batch norms are folded into its convolutions")
        except NothingToCompare:
            self._tries = tries
        except Exception as error:  # a model may hold anything, also what cannot be copied
            log.info("the model's batch norms are not folded: %r", error)


def _may_fold(model: Any) -> bool:
    if not is_suitable(model):
        return False
    kinds = {type(module) for module in model.modules()}
    return {nn.Conv2d, nn.BatchNorm2d} <= kinds


def _first_row(args: Sequence[Any]) -> list[torch.Tensor]:
    """A copy of a batch's first row, as a model may change its input; nothing if not images."""
    if all(map(is_image_batch, args)):
        return [value[:1].clone() for value in args]
    return []


def _observe(model: nn.Module, row: Sequence[torch.Tensor], packs: bool) -> tuple[list[Pair], Any]:
    """Convolutions and the batch norms that get their outputs; and the model's output for a row.

    Whether an output goes elsewhere too is not known; `Folds.run` finds that out. With ``packs``
    the convolutions' weights are to be packed.
    """
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    calls: Counter[nn.Module] = Counter()
    made: dict[int, tuple[nn.Module, torch.Tensor]] = {}  # the tensor, or its id might be reused
    found: list[tuple[nn.Module, nn.Module]] = []
    sizes: dict[nn.Module, torch.Size] = {}

    def returned(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        calls[module] += 1
        if isinstance(module, nn.Conv2d):
            made[id(output)] = (module, output)
            if given:
                sizes[module] = given[0].shape[1:]
        elif len(given) == 1 and id(given[0]) in made:
            found.append((made[id(given[0])][0], module))

    kinds = (nn.Conv2d, nn.BatchNorm2d)
    hooks = [
        module.register_forward_hook(returned) for module in names if isinstance(module, kinds)
    ]
    output = model(*row)
    for hook in hooks:
        hook.remove()
    pairs = [
        Pair(names[conv], names[norm], sizes.get(conv) if packs else None)
        for conv, norm in found
        if calls[conv] == calls[norm] == 1 and are_foldable(conv, norm)
    ]
    return pairs, output


def _tried(folds: Folds, model: nn.Module, row: Sequence[torch.Tensor]) -> Any:
    folds.on()
    try:
        return folds.run(model, *row)
    finally:
        folds.off()  # else there would be a cycle, and the weights would stay


def _size(model: nn.Module, pairs: Sequence[Pair]) -> int:
    return sum(model.get_parameter(f"{pair.conv}.weight").nbytes for pair in pairs)
