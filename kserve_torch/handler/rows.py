"""What is in a row: the one payload that a handler works on, from any protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kserve_torch.codec.document import from_base64
from kserve_torch.codec.values import first_leaf
from kserve_torch.errors import BadRow, InvalidInput

#: Fields that may hold the payload, by precedence. TorchServe knows the first two.
PAYLOAD_FIELDS = ("data", "body", "image")
#: Types that are never empty: 0 is a payload too, and an array's truth value raises.
_NEVER_EMPTY = (np.ndarray, torch.Tensor, int, float, np.generic)
_LARGEST = 2**63 - 1  # of torch's integers


def payloads(rows: Sequence[Any]) -> list[Any]:
    """`payload` of each row.

    Raises:
        BadRow: a row's base64 text is invalid.
    """
    return [payload(row, index) for index, row in enumerate(rows)]


def payload(row: Any, index: int = 0) -> Any:
    """What `sent` finds; ``{"b64": text}`` is the decoded text.

    Raises:
        BadRow: its base64 text is invalid.
    """
    found = sent(row)
    if not isinstance(found, dict) or "b64" not in found:
        return found
    text = found["b64"]
    decoded = from_base64(text) if isinstance(text, str) else None
    if decoded is None:
        raise BadRow(index, "data: not valid base64")
    return decoded


def sent(row: Any) -> Any:
    """The row's payload, as ``row.get("data") or row.get("body")`` finds it (CONTRACT 3.8).

    Numbers, arrays and tensors count even if they are 0 or False. A row that is not a dict is its
    own payload, as is one with ``b64``; a dict without one of the fields has None.
    """
    if not isinstance(row, dict):
        return row
    for field in PAYLOAD_FIELDS:
        value = row.get(field)
        if isinstance(value, _NEVER_EMPTY) or value:
            return value
    return row if "b64" in row else None


def refuse_several(index: int, value: Any, wanted: str) -> None:
    """Refuse a list of texts: a BYTES tensor of several elements is one row, as any tensor is.

    Raises:
        BadRow: it is one; says that each is to be a row with one ``wanted``.
    """
    if isinstance(value, list) and isinstance(first_leaf(value), (str, bytes, bytearray)):
        got = f"got a list of {len(value)}; each needs a row of its own"
        raise BadRow(index, f"data: expected one {wanted}, {got}")


def as_target(index: int, row: Any, classes_only: bool = True) -> Any:
    """The class that an explanation of this row is about: ``row["target"]``, else 0 (CONTRACT E1).

    Returns:
        An int, or a tuple of several ints for outputs of more than two dimensions. Else, such as a
        label, what the row has, if not ``classes_only``.

    Raises:
        BadRow: the target is neither.
    """
    given = value = row.get("target") if isinstance(row, dict) else None
    if isinstance(value, (bytes, bytearray)):
        value = value.decode("utf-8", "replace")
    if isinstance(value, (np.ndarray, torch.Tensor)):
        value = value.tolist()
    if not value:
        return 0
    several = isinstance(value, (list, tuple))
    try:
        numbers = tuple(map(_as_index, value if several else [value]))
    except (TypeError, ValueError, OverflowError):
        if not classes_only:
            return given
        raise BadRow(index, "target: not a class index (an integer)") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _as_index(value: Any) -> int:
    number = int(value)
    if not isinstance(value, str) and number != value:
        raise ValueError("a fraction")
    if abs(number) > _LARGEST:
        raise ValueError("torch has no such integers")
    return number


def as_targets(rows: Sequence[Any], classes_only: bool = True) -> list[Any]:
    """`as_target` of each row.

    Raises:
        BadRow: a row's target is not a class index.
        InvalidInput: some rows have one index and others several, but a model has one output.
    """
    targets = [as_target(index, row, classes_only) for index, row in enumerate(rows)]
    lengths = {len(target) if isinstance(target, tuple) else 1 for target in targets}
    if len(lengths) > 1:
        raise InvalidInput("target: rows have class indices of different lengths")
    return targets
