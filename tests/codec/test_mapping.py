from __future__ import annotations

import numpy as np
import pytest

from kserve_torch.codec.mapping import MAPPINGS
from kserve_torch.errors import InvalidInput
from kserve_torch.messages import Tensor


@pytest.mark.parametrize(
    ("word", "rows", "element", "names"),
    [
        ("tensor", 1, "inputs[0]", ["x"]),
        ("batch", 2, "inputs[0] row 0", ["x"]),
    ],
)
def test_rows_and_back(word: str, rows: int, element: str, names: list[str]) -> None:
    mapping = MAPPINGS[word]
    given = Tensor(name="x", datatype="FP32", array=np.array([[1, 2], [3, 4]], np.float32))
    made = mapping.rows([given])
    assert len(made) == rows
    assert mapping.element.format(0) == element
    (back,) = mapping.outputs([row.array for row in made if isinstance(row, Tensor)], names)
    assert (back.name, back.array.tolist()) == ("x", given.array.tolist())


@pytest.mark.parametrize("word", MAPPINGS)
def test_rows_that_are_far_more_lists_than_elements_are_refused(word: str) -> None:
    given = Tensor(name="x", datatype="FP32", array=np.zeros((2, 100_000, 0), np.float32))
    with pytest.raises(InvalidInput, match=r'inputs\[0\] "x"\.shape: .* makes it 200002 nested'):
        MAPPINGS[word].rows([given])
