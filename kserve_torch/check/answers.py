"""Compares answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import chain
from typing import Any

#: Tolerated difference, relative to the largest number beside it: batches and other machines round
#: differently.
TOLERANCE = 1e-3
#: Absolute differences up to this never count.
SMALLEST = 1e-6
_LONGEST = 60


def difference(got: bytes, wanted: bytes) -> str:
    """The first difference, such as ``predictions[0]: 7, not 2``; "" if there is none.

    In v2 answers only the tensors' elements are compared: versions, and the shapes that TorchServe
    loses, say nothing about the model. Other JSON is compared as a whole, but for ``id``; anything
    else byte by byte.
    """
    try:
        pair = (
            _meaning(json.loads(got, parse_constant=_null)),
            _meaning(json.loads(wanted, parse_constant=_null)),
        )
        return _first(*pair, "", 0.0)
    except (ValueError, RecursionError, OverflowError):  # no JSON, or more than Python can parse
        return "" if got == wanted else f"{len(got)} bytes that differ from {len(wanted)}"


def _null(name: str) -> None:
    """NaN and Infinity, which TorchServe sends; here they are null, as JSON has neither."""


def _meaning(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    if isinstance(document.get("outputs"), list):
        return {"outputs": [_elements(tensor) for tensor in document["outputs"]]}
    return {key: value for key, value in document.items() if key != "id"}


def _elements(tensor: Any) -> Any:
    if not isinstance(tensor, dict):
        return tensor
    return list(_flat(tensor["data"])) if isinstance(tensor.get("data"), list) else tensor


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    return chain.from_iterable(_flat(v) if isinstance(v, list) else (v,) for v in values)


def _first(got: Any, wanted: Any, where: str, scale: float) -> str:
    """The first difference at or below ``where``; ``scale`` is the largest number beside it."""
    if _is_number(got) and _is_number(wanted):
        near = max(SMALLEST, TOLERANCE * scale)
        alike = math.isclose(got, wanted, rel_tol=TOLERANCE, abs_tol=near)
    elif isinstance(got, dict) and isinstance(wanted, dict) and got.keys() == wanted.keys():
        return _among({f"{where}.{key}".lstrip("."): (got[key], wanted[key]) for key in wanted})
    elif isinstance(got, list) and isinstance(wanted, list) and len(got) == len(wanted):
        pairs = enumerate(zip(got, wanted, strict=True))
        return _among({f"{where}[{index}]": pair for index, pair in pairs})
    else:
        alike = (type(got), got) == (type(wanted), wanted)  # True is not 1
    return "" if alike else f"{where or 'answer'}: {_short(got)}, not {_short(wanted)}"


def _among(pairs: dict[str, tuple[Any, Any]]) -> str:
    numbers = [abs(wanted) for _, wanted in pairs.values() if _is_number(wanted)]
    scale = max(numbers, default=0.0)
    found = (_first(got, wanted, where, scale) for where, (got, wanted) in pairs.items())
    return next(filter(None, found), "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
