"""Writes to shared weights through ``Parameter.data`` are counted, as all others are.

torch counts what is written to a tensor, and `sharing` looks at that; but ``data`` is a tensor with
a count of its own, and the usual way to merge an adapter into weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

_data: Any = torch.Tensor.data
_shared: Any = WeakTensorKeyDictionary()


class _CountedData:
    """``Parameter.data``; that of a shared one shares its count too."""

    def __get__(self, parameter: Any, owner: Any = None) -> Any:
        if parameter is None:
            return self
        return parameter.detach() if parameter in _shared else _data.__get__(parameter)

    def __set__(self, parameter: Any, value: Any) -> None:
        _data.__set__(parameter, value)


def install() -> None:
    """Put it into the place of torch's own."""
    nn.Parameter.data = _CountedData()  # type: ignore[assignment]


def count(tensor: torch.Tensor, counted: bool) -> None:
    """Whether writes through the ``data`` of a parameter count from now on."""
    if counted:
        _shared[tensor] = True
    else:
        _shared.pop(tensor, None)
