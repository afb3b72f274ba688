"""Values that handlers return, as arrays and JSON; torch tensors are recognised by methods."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from kserve_torch.codec import datatypes

#: Values that are written at once: orjson keeps all other threads waiting until it is done.
PORTION = 32 * 1024
#: Levels of nesting that are looked at: a list may hold itself.
_DEPTH = 4
#: numpy's own limit.
_MAX_DIMS = 64

_LISTS = (list, tuple)
_NESTED = (list, tuple, dict)


def is_array(value: object) -> bool:
    """Whether ``value`` is a numpy array or scalar, a torch tensor, or the like."""
    return isinstance(value, np.ndarray | np.generic) or _has_numpy(value)


def is_torch(value: object) -> bool:
    """Whether ``value`` is a torch tensor."""
    return hasattr(value, "detach") and _has_numpy(value)


def _has_numpy(value: object) -> bool:
    return callable(getattr(value, "numpy", None)) and hasattr(value, "dtype")


def first_leaf(value: Any) -> Any:
    """The first leaf of nested lists; not deeper than arrays go, for a list may hold itself."""
    for _ in range(_MAX_DIMS):
        if not (isinstance(value, list | tuple) and value):
            break
        value = value[0]
    return value


def as_array(value: Any) -> tuple[str, np.ndarray]:
    """An array, on the host, for anything that `is_array` accepts; bfloat16 as bit patterns.

    Returns:
        ``("BF16", bit patterns)`` for torch's bfloat16, else ``("", array)``.
    """
    if isinstance(value, np.ndarray | np.generic):
        return "", np.asarray(value)
    if hasattr(value, "detach"):
        # By force: from another device, with gradients, or a conjugate or negative view.
        if str(value.dtype) == "torch.bfloat16":
            return "BF16", datatypes.fp32_to_bf16(value.float().numpy(force=True))
        return "", value.numpy(force=True)
    return "", np.asarray(value.numpy())


def as_numbers(value: Any) -> np.ndarray:
    """As `as_array`, but bfloat16 as float32, so that the elements are numbers."""
    datatype, array = as_array(value)
    return datatypes.bf16_to_fp32(array) if datatype == "BF16" else array


def json_text(value: Any, option: int = 0) -> bytes:
    """``value`` as JSON, with arrays as nested lists and non-finite numbers as null (CONTRACT O31).

    Bytes become text if they are UTF-8, else base64. Keys that are no strings become strings.
    Integers may be beyond 64 bits, strings hold lone surrogates, and nesting be deep.

    Raises:
        TypeError: something in it has no JSON form.
    """
    try:
        return _by_orjson(value, option)
    except TypeError as error:
        try:
            text = json.dumps(value, default=default)
            # Parsed and written again, because json cannot write NaN and infinities as null.
            finite = json.loads(text, parse_constant=lambda _: None)
            return json.dumps(finite, indent=2 if option & orjson.OPT_INDENT_2 else None).encode()
        except (ValueError, RuntimeError):  # too deep, or torch's, for odd tensors
            raise error from None


def _by_orjson(value: Any, option: int) -> bytes:
    try:  # for each row: `suppress` takes longer than orjson
        return _dumps(value, option | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        option |= orjson.OPT_NON_STR_KEYS  # slower, so only where needed
    with suppress(TypeError):
        return _dumps(value, option | orjson.OPT_SERIALIZE_NUMPY)
    return _dumps(value, option)  # arrays that are not in the machine's byte order


def _dumps(value: Any, option: int, depth: int = _DEPTH) -> bytes:
    """As `orjson.dumps`, but long lists in portions."""
    if _weight(value, depth) <= PORTION:
        return orjson.dumps(value, default, option)
    indented = option & orjson.OPT_INDENT_2
    if isinstance(value, _LISTS) and (count := PORTION // _weight(value[0], depth - 1)):
        edge = b"\n" if indented else b""
        portions = (value[start : start + count] for start in range(0, len(value), count))
        texts = [
            orjson.dumps(portion, default, option)[1 + len(edge) : -1 - len(edge)]
            for portion in portions
        ]
        texts[0] = b"[" + edge + texts[0]
        texts[-1] += edge + b"]"
        return (b"," + edge).join(texts)
    if not indented:  # a Fragment is not indented further
        value = _with_fragments(value, option, depth - 1)
    return orjson.dumps(value, default, option)


def _weight(value: Any, depth: int) -> int:
    """About how many values are in ``value``, as if all elements of a list were like its first."""
    weight = 1
    while isinstance(value, _LISTS) and value and depth:
        weight *= len(value)
        value = value[0]
        depth -= 1
    if isinstance(value, dict) and depth and len(value) <= PORTION:
        members = 1
        for member in value.values():
            if isinstance(member, _NESTED):
                members += _weight(member, depth - 1)
        weight *= members
    return weight


def _with_fragments(value: Any, option: int, depth: int) -> Any:
    """A list or dict with the texts of those members that are written in portions."""
    if isinstance(value, dict):
        return {key: _fragment(member, option, depth) for key, member in value.items()}
    return [_fragment(member, option, depth) for member in value]


def _fragment(value: Any, option: int, depth: int) -> Any:
    if _weight(value, depth) <= PORTION:
        return value
    return orjson.Fragment(_dumps(value, option, depth))


def default(value: Any) -> Any:
    """What orjson is to write for a value that it does not know."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, set | frozenset | tuple):  # a named tuple
        return list(value)
    if not is_array(value):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    if isinstance(value, np.ndarray | np.generic):  # one that orjson itself cannot write
        return value.tolist()
    return as_numbers(value)[()]
