"""Which answers of a faster way to run a model are those of the usual way."""

import math

import pytest
import torch

from kserve_torch.handler.trial import NothingToCompare, agree, copy_of
from kserve_torch.runtime.torchstate import has_tried

NAN, INF = math.nan, math.inf


def tensors(*values):
    return [torch.tensor(value) for value in values]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (tensors([1.0, 2.0]), tensors([1.0, 2.00001])),
        (tensors([1000.0, 0.0]), tensors([1000.0, 0.005])),  # what rounding leaves of a large sum
        (tensors([NAN, INF, -INF, 1.0]), tensors([NAN, INF, -INF, 1.0])),
        (tensors([True], [7]), tensors([True], [7])),
        ({"a": tensors([]), "b": (torch.ones(1),)}, {"a": tensors([]), "b": (torch.ones(1),)}),
    ],
    ids=["rounded", "small beside large", "no numbers", "integers", "partly empty"],
)
def test_the_same_but_for_rounding(output, expected):
    assert agree(output, expected)
    assert agree(expected, output)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (tensors([1.0, 0.001]), tensors([1.0, 0.0011])),
        (tensors([NAN, INF, 1.0]), tensors([NAN, INF, 1.1])),
        (tensors([1.0]), tensors([NAN])),
        (tensors([1_000_000]), tensors([1_000_001])),
        (tensors([1.0]), tensors([1.0], [2.0])),
        (tensors([]), tensors([1.0])),
        (tensors([[1.0, 1.0]]), tensors([1.0, 1.0])),
        (tensors([1.0]), [torch.tensor([1.0]).double()]),
    ],
    ids=["small", "beside no numbers", "nan", "integers", "fewer", "none", "shape", "dtype"],
)
def test_different_answers(output, expected):
    assert not agree(output, expected)
    assert not agree(expected, output)


def test_answers_that_tell_nothing():
    with pytest.raises(NothingToCompare):
        agree(tensors([]), tensors([], []))
    for text in ("a", None):
        with pytest.raises(TypeError, match="cannot be compared"):
            agree([torch.ones(1), text], [torch.ones(1), text])


def test_whoever_measures_a_call_learns_that_it_had_a_trial():
    has_tried()  # another test may have left one
    copy_of(torch.nn.Linear(1, 1))
    assert has_tried()
    assert not has_tried()
