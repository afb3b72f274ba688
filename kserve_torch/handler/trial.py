"""Trials of a faster way to run a model: on a copy, with a real batch, beside the usual way."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks as _global_hooks
from torch.nn.modules.module import _global_forward_pre_hooks as _global_pre_hooks

from kserve_torch.runtime.torchstate import note_trial
from kserve_torch.runtime.tying import is_plain

#: Largest difference between the answers of both ways, relative to the largest number.
TOLERANCE = 1e-5
#: Batches that may fail, or tell nothing, before there are no more trials.
TRIES = 3
#: Bytes from which on a copy holds a parameter together with the model. What a forward pass writes
#: to, such as a counter, has fewer.
LARGE = 4096


class NothingToCompare(Exception):
    """Both answers are empty, as a detector's are for a picture without objects."""


def is_suitable(model: Any) -> bool:
    """Whether it is a float32 model in evaluation mode on the CPU, not compiled, without hooks."""
    if not isinstance(model, nn.Module) or any(map(is_compiled, model.modules())):
        return False
    if getattr(model, "training", False):  # frozen programs do not say
        return False
    return not has_hooks(model.modules()) and all(map(_is_plain_float32, model.parameters()))


def is_compiled(module: nn.Module) -> bool:
    """Whether it is from `torch.compile`, or was compiled in place by ``compile()``."""
    compiled = vars(module).get("_compiled_call_impl")
    return hasattr(module, "_orig_mod") or not (compiled is None or hasattr(compiled, "folds"))


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether code of others sees what goes in or out of one of the modules."""
    if _global_hooks or _global_pre_hooks:
        return True
    for module in modules:  # noqa: SIM110 - any() takes twice as long, in every call
        if module._forward_hooks or module._forward_pre_hooks:
            return True
    return False


def is_image_batch(value: Any) -> bool:
    """Whether a value is a plain float32 tensor of four dimensions on the CPU."""
    return isinstance(value, torch.Tensor) and value.dim() == 4 and _is_plain_float32(value)


def _is_plain_float32(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.device.type == "cpu" and tensor.dtype is torch.float32


@torch.inference_mode(False)
def copy_of(model: nn.Module, parameters: Mapping[int, torch.Tensor] | None = None) -> nn.Module:
    """A copy, for a trial, that holds the parameters of `LARGE` bytes or more with the model.

    Or ``parameters`` in their place, by the ``id`` of the model's own. A part of the model that
    cannot be copied may raise anything.
    """
    note_trial()
    large = {id(each): each for each in model.parameters() if each.nbytes >= LARGE}
    held = {**large, **(parameters or {})}
    twin = copy.deepcopy(model, dict(held))
    if isinstance(model, torch.jit.ScriptModule):  # copies all
        for own, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.data = held.get(id(own), other).data
    return twin


def agree(output: Any, expected: Any) -> bool:
    """Whether two outputs of a model are the same but for rounding.

    Raises:
        NothingToCompare: there are no numbers in them.
        TypeError: there is something else in them than tensors, sequences and dicts.
    """
    given, wanted = list(_tensors(output)), list(_tensors(expected))
    if not any(tensor.numel() for tensor in (*given, *wanted)):
        raise NothingToCompare
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
