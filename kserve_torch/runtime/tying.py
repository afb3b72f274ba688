"""Tying: instances of one model hold one copy of its weights; see `sharing` for how long."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

#: A container with this many members holds words or paths, not models.
_VOCABULARY = 1000
#: Bytes below which a buffer is not a weight but a counter, statistics, a mask or state.
_LARGE = 1 << 16
#: By item size, the types as which numbers are compared: some dtypes have no comparison.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tie(service: Any, first: Any) -> int:
    """Point the weights of ``service`` at the storages of ``first``'s equal ones.

    Looks at every `nn.Module` that is an attribute of the handler, or a member of one (a pipeline's
    ``model``, an item of a list), and at the same one of ``first``.

    What a call may write to must stay each instance's own, or concurrent calls would overwrite each
    other's data. So these are tied:

    - parameters
    - buffers that serve as parameters, such as quantized weights: large ones that belong to the
      module's state and are not all zeros. Not those of a module in training mode, nor those made
      in inference mode, where torch does not count writes.

    A tensor is not tied if ``first`` has written to it since it was initialised: handlers train, or
    load other weights for a request.

    Args:
        service: a handler instance or module, initialised.
        first: another one of the same archive, whose tensors stay as they are.

    Returns:
        Number of bytes that are no longer held twice.
    """
    originals = dict(modules_of(first))
    total = 0
    for path, module in modules_of(service):
        original = originals.get(path, module)
        if original is not module and (saved := _tie_module(module, original)):
            _tied[module] = _tied.setdefault(original, object())
            total += saved
    return total


def are_tied(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules hold weights together, so that more of them may be."""
    return one in _tied and _tied[one] is _tied.get(other)


def untie(module: nn.Module) -> None:
    """Tie no more modules to this one, nor this one to others; what it holds stays."""
    _tied.pop(module, None)


#: Modules that hold weights together have the same value.
_tied: weakref.WeakKeyDictionary[nn.Module, object] = weakref.WeakKeyDictionary()


def modules_of(service: Any, depth: int = 3) -> Iterator[tuple[str, nn.Module]]:
    """The modules that `tie` looks at, each with its path in the handler."""
    for name, value in _members(service):
        if type(value) in weakref.ProxyTypes:
            continue  # what it stands for is held elsewhere, or no more
        if isinstance(value, nn.Module):
            yield name, value
        elif depth > 1 and not isinstance(value, type | ModuleType):
            yield from ((f"{name}.{path}", m) for path, m in modules_of(value, depth - 1))


def _members(value: Any) -> list[tuple[str, Any]]:
    """Items or attributes; copied atomically, because ``first`` may be running."""
    if isinstance(value, list | tuple):
        members = list(enumerate(value))
    else:
        table = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        members = list(table.items())
    return [(str(name), member) for name, member in members] if len(members) < _VOCABULARY else []


def _tie_module(module: nn.Module, original: nn.Module) -> int:
    saved = 0
    for tensor, other in _pairs(module, original):
        if _interchangeable(tensor, other):
            tensor.data = other.data
            saved += tensor.nbytes
    return saved


def _pairs(module: nn.Module, original: nn.Module) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Parameters and buffers that may be tied, each with the original of the same name."""
    originals = weights_of(original)
    for name, tensor in weights_of(module).items():
        # As often as this one, which was only initialised: nobody has written to the other since.
        if name in originals and _writes(tensor) == _writes(originals[name]):
            yield tensor, originals[name]


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and lasting buffers by name, those that are plain tensors."""
    named = (*module.named_parameters(), *_lasting_buffers(module))
    return {name: tensor for name, tensor in named if is_plain(tensor)}


def _writes(tensor: torch.Tensor) -> int | None:
    """How often it was written to; None if torch does not count that."""
    return None if tensor.is_inference() else tensor._version


def _lasting_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, part in module.named_modules():
        if not getattr(part, "training", False):  # frozen programs do not say
            passing = getattr(part, "_non_persistent_buffers_set", ())
            for name, buffer in part.named_buffers(recurse=False):
                if name not in passing and _is_lasting(buffer):
                    yield f"{path}.{name}", buffer


def _is_lasting(buffer: torch.Tensor) -> bool:
    """Whether a buffer may be a weight; one of zeros may be an empty cache."""
    return (
        is_plain(buffer)
        and buffer.nbytes >= _LARGE
        and not buffer.is_inference()
        and bool(_numbers(buffer).any())
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is just strided memory with numbers in it."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, as integers if there are any of its item size."""
    return tensor.detach().view(_INTEGERS.get(tensor.itemsize, tensor.dtype))


def _interchangeable(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        tensor.data_ptr() != other.data_ptr()
        and (tensor.dtype, tensor.device, tensor.shape, tensor.stride())
        == (other.dtype, other.device, other.shape, other.stride())
        and torch.equal(_numbers(tensor), _numbers(other))
    )
