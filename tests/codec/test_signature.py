from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kserve_torch.codec.rows import split_batch
from kserve_torch.codec.signature import empty, is_signature, seen
from kserve_torch.messages import Tensor

GOOD = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"inputs": []},
        {"inputs": [GOOD], "outputs": [GOOD, {**GOOD, "name": "y", "shape": []}]},
    ],
)
def test_good_signatures(value: Any) -> None:
    assert is_signature(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [GOOD],
        "inputs",
        {"input": [GOOD]},
        {"inputs": GOOD},
        {"inputs": "x"},
        {"inputs": None},
        {"inputs": ["x"]},
        {"inputs": [{"name": "x"}]},
        {"inputs": [{**GOOD, "more": 1}]},
        {"inputs": [{**GOOD, "name": 1}]},
        {"inputs": [{**GOOD, "name": "\ud800"}]},
        {"inputs": [{**GOOD, "datatype": "float32"}]},
        {"inputs": [{**GOOD, "datatype": ["FP32"]}]},
        {"inputs": [{**GOOD, "shape": 3}]},
        {"inputs": [{**GOOD, "shape": [-2]}]},
        {"inputs": [{**GOOD, "shape": [True]}]},
        {"inputs": [{**GOOD, "shape": [2**63]}]},
        {"inputs": [{**GOOD, "shape": ["-1"]}]},
    ],
)
def test_bad_signatures(value: Any) -> None:
    assert not is_signature(value)


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name=name, datatype="FP32", array=np.zeros(shape, np.float32))


def test_empty_tensors_have_the_known_dimensions() -> None:
    outputs = [GOOD, {"name": "y", "datatype": "BYTES", "shape": [4, -1, 2]}]
    told = [(one.name, one.datatype, one.shape, one.array.dtype) for one in empty(outputs)]
    assert told == [("x", "FP32", (0, 3), np.float32), ("y", "BYTES", (0, 0, 2), object)]
    assert [one.shape for one in empty([{**GOOD, "shape": []}])] == [(0,)]


def test_what_a_request_shows() -> None:
    named = {"boxes": np.zeros((5, 4), np.float32), "scores": np.zeros(5)}
    assert seen([tensor("x", 2, 3)], [named]) == {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3]}],
        "outputs": [
            {"name": "boxes", "datatype": "FP32", "shape": [5, 4]},
            {"name": "scores", "datatype": "FP64", "shape": [5]},
        ],
    }


def test_what_a_batch_shows() -> None:
    rows = split_batch([tensor("x", 2, 3), tensor("y", 2)])
    assert seen(rows, [7, 8], batch=True) == {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "y", "datatype": "FP32", "shape": [-1]},
        ],
        "outputs": [{"name": "output-0", "datatype": "INT64", "shape": [-1]}],
    }
    (one,) = seen(split_batch([tensor("x", 1, 3)]), [7], batch=True)["inputs"]
    assert one["shape"] == [-1, 3]


@pytest.mark.parametrize("rows", [[{"data": 1}], [[1, 2]], [1]])
@pytest.mark.parametrize("batch", [True, False])
def test_rows_that_are_no_tensors_show_nothing(rows: list[Any], batch: bool) -> None:
    assert seen(rows, [1], batch=batch) == {}
