"""Embeddings on GPUs: an index that is too large fails its request, as on CPUs.

torch's kernels would fail an assertion there, which ends the process's CUDA context: one text with
a token, or more tokens, than the model knows would stop the server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

_OPERATORS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only")


@cache
def install() -> torch.library.Library:
    """From now on embeddings on GPUs look at their indices first; that waits for the GPU."""
    return replace("CUDA")


def replace(device: str) -> torch.library.Library:
    """Check indices before torch's kernels get them, as long as the result is kept.

    Args:
        device: the kernels' dispatch key.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in _OPERATORS:
        kernel = torch.library.get_kernel(f"aten::{name}", device)
        checking = _checking(kernel.call_boxed)
        library.impl(name, checking, device, with_keyset=True)  # type: ignore[no-untyped-call]
    return library


def _checking(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def checked(keys: Any, weight: torch.Tensor, indices: torch.Tensor, *rest: Any) -> Any:
        if indices.numel() and not _is_recorded(indices):
            lowest, highest = torch.stack(torch.aminmax(indices)).tolist()
            if lowest < 0 or highest >= len(weight):
                raise IndexError("index out of range in self")  # as torch says it on CPUs
        return kernel(keys, weight, indices, *rest)

    return checked


def _is_recorded(tensor: torch.Tensor) -> bool:
    """Whether it is for a CUDA graph, whose numbers come later."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
