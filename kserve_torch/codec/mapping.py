"""How the tensors of a v2 request become rows, and the rows' results tensors again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kserve_torch.codec.results import join_batch, result_to_tensors, taken
from kserve_torch.codec.rows import bounded, split_batch
from kserve_torch.messages import Row, Tensor


@dataclass(frozen=True, slots=True)
class RowMapping:
    """One of the two mappings.

    Attributes:
        rows: the rows of a request's inputs; see `split_batch`.
        element: how errors name row ``i``, as a format.
        outputs: the tensors of the rows' results and the inputs' names.
        snapshot: the requests' `Request.snapshot`.
    """

    rows: Callable[[Sequence[Tensor]], Sequence[Row]]
    element: str
    outputs: Callable[[Sequence[Any], Sequence[str]], list[Tensor]]
    snapshot: Callable[[Any], Any] | None


#: By the value of a model's ``v2_rows``: each input is a row, or each element of dimension 0, which
#: all inputs share (CONTRACT D2).
MAPPINGS: Mapping[str, RowMapping] = {
    "tensor": RowMapping(bounded, "inputs[{}]", result_to_tensors, taken),
    "batch": RowMapping(split_batch, "inputs[0] row {}", join_batch, None),
}
