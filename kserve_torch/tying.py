"""Let several instances of one model hold one copy of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

#: A container of so many members holds words or paths, not models.
_VOCABULARY = 1000


def tie(service: Any, first: Any) -> int:
    """Point the weights of ``service`` at the storages of ``first``'s equal ones.

    Looks at every `nn.Module` that is an attribute of the handler, or a member of one (a pipeline's
    ``model``, an item of a list), and at the same one of ``first``.

    Args:
        service: a handler instance or module, initialised.
        first: another one of the same archive, whose tensors stay as they are.

    Returns:
        Number of bytes that are no longer held twice.
    """
    originals = dict(_modules(first))
    return sum(
        _tie_module(module, originals[path])
        for path, module in _modules(service)
        if path in originals and originals[path] is not module
    )


def _modules(service: Any, depth: int = 3) -> Iterator[tuple[str, nn.Module]]:
    for name, value in _members(service):
        if isinstance(value, nn.Module):
            yield name, value
        elif depth > 1 and not isinstance(value, type | ModuleType):
            yield from ((f"{name}.{path}", m) for path, m in _modules(value, depth - 1))


def _members(value: Any) -> list[tuple[str, Any]]:
    """Items or attributes; copied in one go, because ``first`` may be running."""
    if isinstance(value, list | tuple):
        members = list(enumerate(value))
    else:
        table = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        members = list(table.items())
    return [(str(name), member) for name, member in members] if len(members) < _VOCABULARY else []


@torch.no_grad()
def _tie_module(module: nn.Module, original: nn.Module) -> int:
    theirs = dict(_weights(original))
    saved = 0
    for name, tensor in _weights(module):
        other = theirs.get(name)
        if other is not None and _interchangeable(tensor, other):
            tensor.data = other.data
            saved += tensor.nbytes
    return saved


def _weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, and buffers that hold something: one of zeros may be a cache yet to be filled."""
    yield from module.named_parameters()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if _is_filled(buffer))


def _is_filled(buffer: torch.Tensor) -> bool:
    return is_plain(buffer) and bool(buffer.any())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but strided memory with numbers in it."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
    )


def _interchangeable(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        is_plain(tensor)
        and is_plain(other)
        and tensor.data_ptr() != other.data_ptr()
        and (tensor.dtype, tensor.device, tensor.shape, tensor.stride())
        == (other.dtype, other.device, other.shape, other.stride())
        and torch.equal(tensor, other)
    )
