"""Attributions by captum, which is imported with the first request for an explanation.

captum takes a second to import and most models are never asked to explain, so handlers hold a
`LazyAttribution` where TorchServe's hold captum's object. Archives may also set captum's object
themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from kserve_torch.errors import BadRow, InvalidInput, Unsupported
from kserve_torch.handler.blame import blame_input

#: Steps of the integral, as in TorchServe (CONTRACT 3.8).
N_STEPS = 15
#: Rows that go through the model at once; an explanation makes `N_STEPS` rows of each.
INTERNAL_BATCH_SIZE = 64
_NO_CLASS = re.compile(r"index (-?\d+) is out of bounds for dimension \d+ with size (\d+)")
_NO_FORM = re.compile(
    "Cannot choose target|too many indices for tensor|Target not provided when necessary"
    "|^Target (element )?type"
)


class LazyAttribution:
    """A captum attribution method, created on first use; it has all of its attributes.

    Args:
        method: the class's name in ``captum.attr``.
        arguments: returns the class's arguments: the model, and the layer for layer methods.
    """

    def __init__(self, method: str, arguments: Callable[[], tuple[Any, ...]]) -> None:
        self._method = method
        self._arguments = arguments
        self._made: Any = None

    def _make(self) -> Any:
        if self._made is None:
            try:
                import captum.attr
            except ModuleNotFoundError as error:
                raise Unsupported("explanations need the package captum") from error
            method = getattr(captum.attr, self._method)
            if method is captum.attr.IntegratedGradients:
                method = _adapted(method)
            self._made = method(*self._arguments())
        return self._made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._make(), name)


def _adapted(method: type[Any]) -> type[Any]:
    """Captum's integrated gradients, but with the points of the integral computed only once.

    They are eigenvalues of a matrix: 5% of the time of a small model's explanation. And a row's
    target that is no class is an error on GPUs too, see `_looked_up_alone`.
    """
    from captum.attr._utils.approximation_methods import approximation_parameters

    @cache
    def points(rule: str, steps: int) -> tuple[list[float], list[float]]:
        step_sizes, alphas = approximation_parameters(rule)
        return step_sizes(steps), alphas(steps)

    class IntegratedGradients(method):  # type: ignore[misc]  # imported late
        def _attribute(
            self, *args: Any, n_steps: int = 50, method: str = "gausslegendre", **kwargs: Any
        ) -> Any:
            if kwargs.get("step_sizes_and_alphas") is None:
                kwargs["step_sizes_and_alphas"] = points(method, n_steps)
            if any(each.device.type != "cpu" for each in kwargs["inputs"]):
                kwargs["target"] = _looked_up_alone(kwargs.get("target"))
            return super()._attribute(*args, n_steps=n_steps, method=method, **kwargs)

    return IntegratedGradients


def _looked_up_alone(target: Any) -> Any:
    """A list of classes in a form that captum looks up one by one.

    It looks up a list of ints in one kernel, and there an index that is too large ends the
    process's CUDA context: any client could stop the server.
    """
    if not isinstance(target, list):
        return target
    return [(each,) if isinstance(each, int) else each for each in target]


def integrated_gradients(
    method: Any, inputs: torch.Tensor, target: Any, internal_batch_size: int = INTERNAL_BATCH_SIZE
) -> list[Any]:
    """Integrated gradients of each row, as nested lists of the input's shape.

    Args:
        method: captum's ``IntegratedGradients`` or a `LazyAttribution` of it.
        inputs: a batch, ``[rows, ...]``.
        target: one class index for all rows, or a list with one per row.
        internal_batch_size: most rows that go through the model at once.

    Raises:
        BadRow: a row's target is not a class of the model.
        InvalidInput: the model does not accept ``inputs``, or a target of this form.
    """
    rows = len(inputs)
    limit = max(internal_batch_size, rows) if rows * N_STEPS > internal_batch_size else None
    with blame_input(inputs), blame_target(target):
        attributions = method.attribute(
            inputs, target=target, n_steps=N_STEPS, internal_batch_size=limit
        )
    result: list[Any] = attributions.tolist()
    return result


@contextmanager
def blame_target(target: Any) -> Iterator[None]:
    """Translates captum's errors about ``target``: one class, or a list with one per row.

    Raises:
        BadRow: instead of an error about an index.
        InvalidInput: instead of an error about the targets' form.
    """
    try:
        yield
    except (IndexError, RuntimeError, AssertionError) as error:
        text = str(error)
        found = _NO_CLASS.search(text)
        if found and (rows := _rows_that_name(int(found[1]), target)):
            text = f"target: {found[1]} is no class, the model has {found[2]} (0 is the first)"
            raise BadRow(rows[0], text) from error
        if _NO_FORM.search(text):
            text = f"target: {target} does not fit the model's output: {text}"
            raise InvalidInput(text) from error
        raise


def _rows_that_name(index: int, target: Any) -> list[int]:
    """Rows whose target is this index or has it, if the model's output has several dimensions."""
    targets = target if isinstance(target, list) else [target]
    indices = [each if isinstance(each, tuple) else (each,) for each in targets]
    return [row for row, each in enumerate(indices) if index in each]
