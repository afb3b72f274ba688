"""What a handler returns, as output tensors (CONTRACT T-02, T-24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import orjson

from kserve_torch.codec import datatypes
from kserve_torch.codec.document import is_sendable
from kserve_torch.codec.elements import objects
from kserve_torch.codec.snapshot import snapshot
from kserve_torch.codec.values import as_array, as_numbers, first_leaf, is_array, json_text
from kserve_torch.errors import HandlerError
from kserve_torch.messages import Tensor

#: Types that become an element of a BYTES tensor unchanged.
_TEXT = (str, bytes, bytearray, memoryview)
_INTEGER = (int, np.integer)


def result_to_tensors(results: Sequence[Any], names: Sequence[str]) -> list[Tensor]:
    """The output tensors of one request, in the order of its results.

    ========================================  ==================================================
    result                                    tensor
    ========================================  ==================================================
    array, torch tensor                       its datatype and shape, a scalar as [1]
    bool, int, float                          BOOL, INT64, FP64 of shape [1]
    str, bytes                                BYTES of shape [1]
    list, rectangular and of one kind         BOOL, INT64, UINT64, FP64 or BYTES in its own shape
    any other list                            BYTES, per item its text, or its JSON text
    dict of arrays and torch tensors only     a tensor per key
    any other JSON value                      BYTES of shape [1], its JSON text
    ========================================  ==================================================

    Args:
        results: one per row.
        names: result i has the name of input i, or the one that the model declares, or else
            ``output-{i}``. A dict's tensors have the names of its keys, after ``{name}.`` if there
            are several results.

    Raises:
        HandlerError: a result is of a kind that no datatype holds.
    """
    outputs: list[Tensor] = []
    for i, result in enumerate(results):
        name = names[i] if i < len(names) else f"output-{i}"
        if not _is_named(result):
            outputs.append(tensor_from_result(name, result))
            continue
        prefix = f"{name}." if len(results) > 1 else ""
        outputs.extend(tensor_from_result(f"{prefix}{key}", part) for key, part in result.items())
    return outputs


def taken(result: Any) -> Any:
    """``result`` as `snapshot` takes it, but what has to be converted as a `Tensor` without a name.

    For `result_to_tensors`; to convert it takes hardly longer than to copy it.
    """
    if isinstance(result, dict | list | tuple) and not _is_named(result):
        with suppress(HandlerError):  # said again with the output's name
            return tensor_from_result("", result)
    return snapshot(result)


def join_batch(results: Sequence[Any], names: Sequence[str]) -> list[Tensor]:
    """The output tensors of a batch whose rows came from `rows.split_batch`.

    Dimension 0 is the batch again. Results that are dicts of arrays with the same keys give a
    tensor per key; others give one tensor, with the name of the input, or the one that the model
    declares, if there is only one.

    Raises:
        HandlerError: a result is of a kind that no datatype holds.
    """
    keys = results[0].keys() if results and all(map(_is_named, results)) else None
    if keys and all(result.keys() == keys for result in results):
        columns = {key: [result[key] for result in results] for key in keys}
    else:
        name = names[0] if len(names) == 1 else "output-0"
        columns = {name: list(results)}
    return [tensor_from_result(str(name), column) for name, column in columns.items()]


def _is_named(result: object) -> bool:
    """Whether a result is a dict of arrays: several outputs under their own names."""
    return isinstance(result, Mapping) and bool(result) and all(map(is_array, result.values()))


def flattened(tensor: Tensor) -> Tensor:
    """The tensor with shape [n], as TorchServe sends every output."""
    array = tensor.array.reshape(-1)
    return Tensor(name=tensor.name, datatype=tensor.datatype, array=array)


def tensor_from_result(name: str, result: Any) -> Tensor:
    """The tensor for one result; see `result_to_tensors` for the rules.

    Raises:
        HandlerError: the result is of a kind that no datatype holds, or the name cannot be sent.
    """
    if not is_sendable(name):
        raise HandlerError(f'output "{name}": the name holds a lone surrogate')
    if isinstance(result, Tensor):
        datatype, values = result.datatype, result.array
    elif is_array(result):
        datatype, values = _from_array(result, name)
    elif isinstance(result, list | tuple):
        datatype, values = _from_list(result, name)
    elif isinstance(result, bool | int | float):
        datatype, values = _typed("", np.asarray(result), name)
    else:
        datatype, values = "BYTES", objects([_text(result, name)])
    return Tensor(name=name, datatype=datatype, array=np.atleast_1d(values))


def _from_array(result: Any, name: str) -> tuple[str, np.ndarray]:
    """Datatype and array of whatever `is_array` accepts."""
    try:
        return _typed(*as_array(result), name)
    except (TypeError, RuntimeError) as error:  # torch's, for layouts and dtypes that numpy lacks
        raise HandlerError(f'output "{name}": {error}') from error


def _typed(datatype: str, values: np.ndarray, name: str) -> tuple[str, np.ndarray]:
    """Datatype and array in the machine's byte order; strings and objects become BYTES."""
    if datatype:
        return datatype, values
    if values.dtype.kind in "USO":
        flat = objects([_text(value, name) for value in values.reshape(-1).tolist()])
        return "BYTES", flat.reshape(values.shape)
    found = datatypes.of_dtype(values.dtype)
    if found is None:
        raise HandlerError(f'output "{name}": no datatype holds {values.dtype}')
    return found, values.astype(values.dtype.newbyteorder("="), copy=False)


def _from_list(result: Sequence[Any], name: str) -> tuple[str, np.ndarray]:
    """Datatype and array of a list: one array if it is rectangular, else an element per item."""
    if all(map(is_array, result)):
        parts = [_from_array(part, name) for part in result]
        if len({(datatype, part.shape) for datatype, part in parts}) == 1:
            return parts[0][0], np.stack([part for _, part in parts])
    values = _rectangular(result)
    if values is not None:
        return _typed("", values, name)
    return "BYTES", objects([_text(item, name) for item in result])


def _rectangular(result: Sequence[Any]) -> np.ndarray | None:
    """The list as an array of numbers, booleans, text or bytes; None if it is ragged or mixed."""
    leaf = first_leaf(result)
    if isinstance(leaf, _TEXT):
        return _texts(result)
    try:
        values = _array(result)
    except (ValueError, TypeError, OverflowError):
        return None
    if values.dtype == np.float64 and isinstance(leaf, _INTEGER) and _is_huge(values):
        return _whole_numbers(result, values)
    return values if values.dtype.kind in "biuf" else None


def _array(result: Sequence[Any]) -> np.ndarray:
    """The list as numpy converts it; torch tensors of some kinds must become arrays first."""
    try:
        return np.array(result)
    except (TypeError, RuntimeError):  # from torch, for tensors that numpy cannot take
        return np.array(_with_arrays(result))


def _with_arrays(value: Any) -> Any:
    """Nested lists with each tensor as an array; bfloat16, which numpy lacks, as float32."""
    if isinstance(value, list | tuple):
        return [_with_arrays(item) for item in value]
    return as_numbers(value) if is_array(value) else value


def _is_huge(values: np.ndarray) -> bool:
    """Whether some number is beyond INT64, so that it pays to look at the list itself."""
    return bool(max(values.max(), -values.min()) >= 2.0**63)


def _whole_numbers(result: Sequence[Any], rounded: np.ndarray) -> np.ndarray | None:
    """The list as UINT64, or None: numpy rounds integers on both sides of 2^63 to FP64.

    Its array, ``rounded``, is right if not all of the numbers are integers.
    """
    leaves = np.array(result, object).reshape(-1).tolist()
    if not all(isinstance(leaf, _INTEGER) for leaf in leaves):
        return rounded
    return np.array(leaves, np.uint64).reshape(rounded.shape) if min(leaves) >= 0 else None


def _texts(result: Sequence[Any]) -> np.ndarray | None:
    """Nested lists of text and bytes as an array; numpy itself reads a bytearray as numbers."""
    shape, items = [len(result)], list(result)
    while all(isinstance(item, list | tuple) for item in items):
        width = len(items[0])
        if any(len(item) != width for item in items):
            return None
        shape.append(width)
        items = list(chain.from_iterable(items))
    if not all(isinstance(item, _TEXT) for item in items):
        return None
    return objects(items).reshape(shape)


def _text(value: Any, name: str) -> str | bytes:
    """A BYTES element: text and bytes as they are, anything else as JSON text (CONTRACT T-24).

    What JSON itself writes as a string, such as a time, is that string.
    """
    if isinstance(value, _TEXT):
        return value if isinstance(value, str) else bytes(value)
    try:
        text = json_text(value)
    except TypeError as error:
        raise HandlerError(f'output "{name}": {error}') from error
    return str(orjson.loads(text)) if text.startswith(b'"') else text.decode()
