"""The tensors that a model takes and returns, as its metadata lists them (CONTRACT O5).

A `Signature` is ``{"inputs": [...], "outputs": [...]}`` of ``{"name", "datatype", "shape"}``; a
dimension of -1 may have any length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.codec.document import is_sendable
from kserve_torch.codec.mapping import MAPPINGS
from kserve_torch.messages import NOTHING, Row, Tensor

Signature = Mapping[str, Sequence[Mapping[str, Any]]]

ALLOWED = (
    "inputs and outputs, each a list of name, datatype and shape; datatypes are "
    f"{', '.join(DATATYPES)}, shapes lists of integers >= -1"
)


def is_signature(value: object) -> bool:
    """Whether ``value``, from a model-config.yaml, is a signature that can be sent to clients."""
    return (
        isinstance(value, dict)
        and value.keys() <= {"inputs", "outputs"}
        and all(isinstance(side, list) and all(map(_is_tensor, side)) for side in value.values())
    )


def _is_tensor(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() != {"name", "datatype", "shape"}:
        return False
    name, datatype, shape = value["name"], value["datatype"], value["shape"]
    return (
        isinstance(name, str)
        and is_sendable(name)
        and isinstance(datatype, str)
        and datatype in DATATYPES
        and isinstance(shape, list)
        and all(type(dim) is int and -1 <= dim < 2**63 for dim in shape)
    )


def seen(rows: Sequence[Row], results: Sequence[Any], *, batch: bool = False) -> Signature:
    """The signature that follows from an answered request; empty if its rows are not tensors.

    Args:
        rows: as in `Request.rows`.
        results: one per row.
        batch: whether the rows are elements of dimension 0, which then may have any length.

    Raises:
        HandlerError: a result is of a kind that no datatype holds.
    """
    inputs: list[Any] = list(rows)
    if batch and rows:
        inputs = list(rows[0].values()) if isinstance(rows[0], dict) else [rows[0]]
    if not all(isinstance(tensor, Tensor) for tensor in inputs):
        return NOTHING
    mapping = MAPPINGS["batch" if batch else "tensor"]
    outputs = mapping.outputs(results, [tensor.name for tensor in inputs])
    return {
        "inputs": [
            _told(tensor, [-1, *tensor.shape] if batch else tensor.shape) for tensor in inputs
        ],
        "outputs": [_told(t, [-1, *t.shape[1:]] if batch else t.shape) for t in outputs],
    }


def empty(outputs: Sequence[Mapping[str, Any]]) -> list[Tensor]:
    """The output tensors of a batch without rows, which no handler sees.

    Args:
        outputs: as in a `Signature`. Dimension 0 is 0, and so are those of any length.
    """
    tensors: list[Tensor] = []
    for output in outputs:
        shape = [0, *(max(dim, 0) for dim in output["shape"][1:])]
        array = np.empty(shape, DATATYPES[output["datatype"]].dtype)
        tensors.append(Tensor(name=output["name"], datatype=output["datatype"], array=array))
    return tensors


def _told(tensor: Tensor, shape: Sequence[int]) -> Mapping[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(shape)}
