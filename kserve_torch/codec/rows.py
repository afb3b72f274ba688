"""Tensors as handlers get them: one row per tensor, or one per element of dimension 0."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain
from operator import mul
from typing import Any

import numpy as np

from kserve_torch.codec import datatypes
from kserve_torch.errors import InvalidInput
from kserve_torch.messages import MAX_ROWS, Row, Tensor

#: Elements of which lists are made at once: numpy holds the interpreter's lock, and so keeps all
#: other threads waiting, until it is done.
PORTION = 32 * 1024
#: The parameter of an input that says which class its explanation is about.
TARGET = "target"


def to_row(row: Row, arrays: bool = False) -> Row:
    """What the handler gets for a row of a `Request`.

    A `Tensor` becomes ``{"name", "shape", "datatype", "data"}`` and ``"parameters"`` if it has any
    (CONTRACT V3); `TARGET` is also copied to where handlers look for it. A dict that holds tensors
    becomes the same dict of their data.

    Args:
        row: an element of `Request.rows`.
        arrays: give numeric data as read-only numpy arrays instead of nested lists.
    """
    if isinstance(row, Tensor):
        values = {"name": row.name, "shape": list(row.shape), "datatype": row.datatype}
        values["data"] = data_of(row, arrays)
        if TARGET in row.parameters:
            values[TARGET] = row.parameters[TARGET]
        return {**values, "parameters": dict(row.parameters)} if row.parameters else values
    if isinstance(row, dict):
        return {
            name: data_of(value, arrays) if isinstance(value, Tensor) else value
            for name, value in row.items()
        }
    return row


def data_of(tensor: Tensor, arrays: bool = False) -> Any:
    """The elements as a handler wants them.

    A BYTES tensor of one element is that element, a larger one a nested list; binary elements are
    ``bytearray`` (CONTRACT T-14, T-19). BF16 is given in float32.
    """
    if tensor.datatype == "BYTES":
        if tensor.array.size == 1:
            return _element(tensor.array.item())
        return np.frompyfunc(_element, 1, 1)(tensor.array).tolist()
    values = tensor.array
    if tensor.datatype == "BF16":
        values = datatypes.bf16_to_fp32(values)
    return _read_only(values) if arrays else _lists(values)


def _lists(values: np.ndarray) -> Any:
    """As ``values.tolist()``, in portions."""
    if values.size <= PORTION:
        return values.tolist()
    count = PORTION * len(values) // values.size
    if not count:
        return [_lists(part) for part in values]
    lists: list[Any] = []
    for start in range(0, len(values), count):
        lists += values[start : start + count].tolist()
    return lists


def _read_only(values: np.ndarray) -> np.ndarray:
    view = values.view()
    view.flags.writeable = False
    return view


def _element(value: bytes | str) -> bytearray | str:
    return value if isinstance(value, str) else bytearray(value)


def in_base64(tensor: Tensor) -> Tensor:
    """Binary BYTES elements as base64 text, for ``v2_grpc_bytes: b64`` (CONTRACT T-44)."""
    if tensor.datatype != "BYTES":
        return tensor
    array = np.frompyfunc(_base64, 1, 1)(np.atleast_1d(tensor.array)).reshape(tensor.shape)
    return replace(tensor, array=array)


def _base64(value: bytes | str) -> str:
    return value if isinstance(value, str) else base64.b64encode(value).decode()


def bounded(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """``inputs``, if as nested lists they do not cost far more memory than their elements do.

    Raises:
        InvalidInput: some have no elements, or many dimensions of length 1.
    """
    lists, allowed = 0, MAX_ROWS
    for i, tensor in enumerate(inputs):
        lists += sum(accumulate(tensor.shape[:-1], mul))
        allowed += 3 * tensor.array.size
        if lists > allowed:
            text = f"{list(tensor.shape)} makes it {lists} nested lists, over {allowed}"
            raise InvalidInput(f'inputs[{i}] "{tensor.name}".shape: {text}')
    return inputs


def split_batch(inputs: Sequence[Tensor]) -> Sequence[Row]:
    """One row per element of dimension 0, which all inputs share (CONTRACT D2).

    A row is a `Tensor` without that dimension if there is one input, else a dict of such tensors
    by their names, and `TARGET` if an input has this parameter.

    Raises:
        InvalidInput: an input has no dimensions, or another length than the first; or see
            `bounded`.
    """
    for i, tensor in enumerate(inputs):
        if not tensor.shape or tensor.shape[0] != inputs[0].shape[0]:
            wanted = f"{inputs[0].shape[0]} rows as in inputs[0]" if i else "a batch dimension"
            got = f"shape {list(tensor.shape)}, expected {wanted}"
            raise InvalidInput(f'inputs[{i}] "{tensor.name}".shape: {got}')
    bounded(inputs)
    count = inputs[0].shape[0]
    if len(inputs) == 1:
        return _Rows(count, partial(_part, inputs[0]))
    parameters = chain.from_iterable(tensor.parameters.items() for tensor in inputs)
    target = {name: value for name, value in parameters if name == TARGET}
    return _Rows(count, lambda i: target | {each.name: _part(each, i) for each in inputs})


class _Rows(Sequence[Row]):
    """Rows that are made as they are asked for, on the worker's thread: they may be many."""

    def __init__(self, count: int, make: Callable[[int], Row]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Row:
        return self._make(i)

    def __iter__(self) -> Iterator[Row]:
        return map(self._make, range(self._count))


def _part(tensor: Tensor, i: int) -> Tensor:
    """Element ``i`` of dimension 0, as a tensor over the same memory."""
    return Tensor(
        name=tensor.name,
        datatype=tensor.datatype,
        array=tensor.array[i, ...],
        parameters=tensor.parameters,
    )
