"""Payloads to tensors, tensors to one batch, batches to the device, results to bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import torch

from kserve_torch.codec.values import first_leaf
from kserve_torch.errors import BadRow, InvalidInput

#: How torch begins to say that a number in a list does not fit.
_TOO_LARGE = "Overflow when unpacking"


def as_tensor(index: int, value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Numbers, nested lists of them, an array or a tensor as a tensor.

    Args:
        index: the row's index, for the error.
        value: the payload; bytes must be JSON, as of a client that names no content type.
        dtype: of the result; None infers it as `torch.as_tensor` does from lists, for arrays too.

    Raises:
        BadRow: ``value`` is none of these, or is ragged, or has a number too large for the dtype.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        value = _parsed(index, value)
    try:
        value = _numbers(value)
        if isinstance(value, np.ndarray):
            # A copy: arrays may be read-only views of the request's bytes.
            return torch.from_numpy(np.array(value)).to(dtype or _dtype_of_lists(value))
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if str(error).startswith(_TOO_LARGE):
            raise BadRow(index, "data: a number is too large for INT64") from None
        raise BadRow(index, _why_no_tensor(value)) from None


def _parsed(index: int, text: bytes | bytearray | memoryview) -> Any:
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        reason = f"data: expected numbers or lists of numbers as JSON, got {len(text)} other bytes"
        raise BadRow(index, reason) from None


def _dtype_of_lists(array: np.ndarray) -> torch.dtype:
    if array.dtype.kind == "f":
        return torch.get_default_dtype()
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise OverflowError(_TOO_LARGE)  # it would become negative
    return torch.bool if array.dtype.kind == "b" else torch.int64


def _why_no_tensor(value: Any) -> str:
    if value is None:
        return "data: missing or empty"
    if isinstance(value, (list, tuple, np.ndarray)):
        return "data: expected numbers in a list of regular shape"
    return f"data: expected numbers or lists of numbers, got {type(value).__name__}"


def as_batch(
    values: Sequence[Any], dtype: torch.dtype | None = None, context: Any = None
) -> torch.Tensor:
    """`as_tensor` of each value, in one batch ``[rows, ...]``; see `stack`.

    Raises:
        BadRow: one of them is not what `as_tensor` takes.
        InvalidInput: their shapes differ, or their dtypes in several requests.
    """
    rows: Any = values
    if len(values) > 1 and _are_alike(values):
        rows = np.array(values)  # one copy of all instead of two of each
    elif dtype is not None or getattr(context, "has_one_request", True):
        rows = _numbers(values)
    if isinstance(rows, np.ndarray):
        return torch.from_numpy(rows).to(dtype or _dtype_of_lists(rows))
    return stack([as_tensor(index, value, dtype) for index, value in enumerate(values)], context)


def _numbers(values: Any) -> Any:
    """Nested lists of numbers as an array, which numpy makes five times as fast as torch.

    They are returned as they are if torch would read them in another way, or not at all.
    """
    if not isinstance(first_leaf(values), int | float):
        return values
    try:
        array = np.array(values)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        return values
    # Whole numbers that are too large for torch become floats.
    is_exact = array.dtype.kind in "bi" or (array.dtype.kind == "f" and array.max() < 2.0**63)
    return array if is_exact else values


def _are_alike(values: Sequence[Any]) -> bool:
    """Whether all are arrays of numbers, of one shape and one dtype that torch has."""
    first = values[0]
    if not isinstance(first, np.ndarray):
        return False
    shape, dtype = first.shape, first.dtype
    if dtype.kind not in "bif" or not dtype.isnative:
        return False
    return all(
        isinstance(value, np.ndarray) and value.shape == shape and value.dtype == dtype
        for value in values
    )


def stack(tensors: Sequence[torch.Tensor], context: Any = None) -> torch.Tensor:
    """Tensors of one shape as a batch ``[rows, ...]``; ``[0]`` for none.

    Rows of one request are promoted to a common dtype, like the numbers of a list. Rows of several
    requests must have one already, as another client's floats would change integers; such requests
    are run again separately. Without the running call's context, there is one request.

    Raises:
        InvalidInput: their shapes differ, or their dtypes in several requests.
    """
    if not tensors:
        return torch.empty(0)
    shape = tensors[0].shape
    if len(tensors) == 1:
        # No copy, but the strides of a stack: with those of ToTensor torch chooses other kernels.
        return tensors[0].reshape(-1).view(1, *shape)
    for index, tensor in enumerate(tensors):
        if tensor.shape != shape:
            raise InvalidInput(
                f"rows have different shapes: row 0 {list(shape)}, row {index} {list(tensor.shape)}"
            )
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 and not getattr(context, "has_one_request", True):
        raise InvalidInput("rows of several requests have different dtypes")
    return torch.stack(list(tensors))


def to_device(data: Any, device: torch.device | str | int | None) -> Any:
    """``data`` on ``device``: tensors, anything with ``to``, lists and tuples of both.

    Anything else stays as it is, as do all with a device of None. Copies to a CUDA device go
    through pinned memory, so that they overlap with computation.
    """
    if isinstance(data, torch.Tensor):
        if data.device.type == "cpu" and is_cuda(device):
            return data.pin_memory().to(device, non_blocking=True)
        return data.to(device)
    # Before tuples, since a PackedSequence is one.
    if hasattr(data, "to"):
        return data.to(device)
    if not isinstance(data, (list, tuple)):
        return data
    items = (to_device(item, device) for item in data)
    return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)


def is_cuda(device: torch.device | str | int | None) -> bool:
    """Whether ``device``, in any form that handlers use, is a CUDA device."""
    return device is not None and torch.device(device).type == "cuda"


def save_tensor(tensor: torch.Tensor) -> bytes:
    """A tensor in the format of ``torch.save``, as TorchServe sends it."""
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()


def describe(data: Any) -> str:
    """Shape and dtype of a model's input, for clients: ``[2, 28, 28] float32``."""
    if isinstance(data, torch.Tensor):
        return f"{list(data.shape)} {str(data.dtype).removeprefix('torch.')}"
    if isinstance(data, (list, tuple)):
        return ", ".join(describe(item) for item in data)
    return type(data).__name__
