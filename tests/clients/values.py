"""An array of each datatype of the protocol, with its extremes (CONTRACT O27)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _extremes(dtype: str) -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.array([[low, 0, 1], [2, 3, high]], dtype)


FLOATS = [[0.0, -1.5, 2.0], [0.25, 3.0, -65504.0]]

#: BF16 as float32, as clients hold it; BYTES as objects.
VALUES: dict[str, Array] = {
    "BOOL": np.array([[True, False, True], [False, False, True]]),
    **{
        f"{sign}INT{bits}": _extremes(f"{sign.lower()}int{bits}")
        for sign in ("U", "")
        for bits in (8, 16, 32, 64)
    },
    "FP16": np.array(FLOATS, np.float16),
    "BF16": np.array([[0.0, -1.5, 2.0], [0.25, 3.0, 2.0**120]], np.float32),
    "FP32": np.array(FLOATS, np.float32),
    "FP64": np.array(FLOATS, np.float64),
    "BYTES": np.array([[b"", b"a", b"\x00"], [b"caf\xc3\xa9", b"d" * 300, b"e"]], object),
}

#: Those that JSON and typed gRPC contents have a form for (CONTRACT O28).
TYPED = [datatype for datatype in VALUES if datatype not in ("FP16", "BF16")]
