"""Attributions by captum, which is imported when the first explanation is asked for.

captum takes a second to import and most models are never asked; so handlers hold a
`LazyAttribution` where TorchServe's hold captum's own object. Archives that set captum's object
themselves work too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kserve_torch.errors import Unsupported
from kserve_torch.handler.shapes import blame_input

#: Steps of the integral, as in TorchServe (CONTRACT 3.8).
N_STEPS = 15
#: Rows that go through the model at once; an explanation makes `N_STEPS` of each row.
INTERNAL_BATCH_SIZE = 64


class LazyAttribution:
    """A captum attribution method, made on first use; it can do all that captum's object can.

    Args:
        method: the class's name in ``captum.attr``.
        arguments: gives the class's arguments: the model, and the layer for layer methods.
    """

    def __init__(self, method: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
        self._method = method
        self._arguments = arguments
        self._made: Any = None

    def _make(self) -> Any:
        if self._made is None:
            try:
                import captum.attr
            except ImportError as error:
                raise Unsupported("explanations need the package captum") from error
            self._made = getattr(captum.attr, self._method)(*self._arguments())
        return self._made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def integrated_gradients(
    method: Any, inputs: torch.Tensor, target: Any, internal_batch_size: int = INTERNAL_BATCH_SIZE
) -> list[Any]:
    """Integrated gradients of each row, as nested lists of the input's shape.

    Args:
        method: captum's ``IntegratedGradients`` or a `LazyAttribution` of it.
        inputs: a batch, ``[rows, ...]``.
        target: one class index for all rows, or a list with one per row.
        internal_batch_size: at most so many rows go through the model at once.

    Raises:
        InvalidInput: the model does not take ``inputs``, or has no class ``target``.
    """
    rows = len(inputs)
    limit = max(internal_batch_size, rows) if rows * N_STEPS > internal_batch_size else None
    with blame_input(inputs):
        attributions = method.attribute(
            inputs, target=target, n_steps=N_STEPS, internal_batch_size=limit
        )
    result: list[Any] = attributions.tolist()
    return result
