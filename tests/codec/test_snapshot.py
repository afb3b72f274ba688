from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from kserve_torch.codec import snapshot as snapshots
from kserve_torch.codec.snapshot import snapshot, written
from kserve_torch.codec.values import json_text


@dataclass(frozen=True, slots=True)
class Box:
    values: Any
    more: Any

    def __post_init__(self):
        assert isinstance(self.values, np.ndarray)


@dataclass
class Late:
    values: Any = field(init=False)


@pytest.mark.parametrize("value", ["a", b"a", 1, 2.5, True, None, np.float32(1), object()])
def test_what_nobody_changes_passes(value):
    assert snapshot(value) is value


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, 2], lambda value: value.append(3)),
        ([[1], "a"], lambda value: value[0].append(3)),
        ([[1], [2, "a"]], lambda value: value[1].append(3)),
        ([[1], [[2]]], lambda value: value[1][0].append(3)),
        ([[1], [{"a": 2}]], lambda value: value[1][0].clear()),
        ([[], [bytearray(b"a")]], lambda value: value[1][0].clear()),
        ({"a": [1]}, lambda value: value["a"].clear()),
        ({"a": 1}, lambda value: value.update(a=2)),
        (OrderedDict(a=[1]), lambda value: value.clear()),
        (([1], 2), lambda value: value[0].clear()),
        (bytearray(b"ab"), lambda value: value.clear()),
    ],
)
def test_what_is_changed_afterwards_is_not_changed_in_it(value, change):
    taken = snapshot(value)
    text = repr(value)
    assert taken == value
    change(value)
    assert repr(value) != text
    assert taken != value


def test_pairs_are_copied_together(monkeypatch):
    """As of the pixels of a picture: a call for each takes twice as long."""
    calls = []
    monkeypatch.setattr(snapshots, "snapshot", lambda value: calls.append(value) or snapshot(value))
    picture = [[[1, 0.5], [2, 0.25]], [[3, 0.5], [None, "a"]]]
    assert snapshot(picture) == picture
    assert calls == picture


def test_memory_behind_a_view():
    memory = bytearray(b"ab")
    taken = snapshot(memoryview(memory))
    memory[0] = 0
    assert taken == b"ab"


def test_arrays():
    whole = np.arange(4)
    taken = snapshot([whole[:2], {"a": whole}])
    whole[:] = 7
    assert taken[0].tolist() == [0, 1]
    assert taken[1]["a"].tolist() == [0, 1, 2, 3]


def test_tensors():
    whole = torch.arange(4.0)
    taken = snapshot(list(whole.requires_grad_()))
    with torch.no_grad():
        whole.fill_(7)
    assert [value.item() for value in taken] == [0, 1, 2, 3]
    assert not any(value.requires_grad for value in taken)


def test_what_holds_itself_is_an_error():
    value = []
    value.append(value)
    with pytest.raises(RecursionError):
        snapshot(value)


def test_named_tuples_and_dataclasses():
    scores, memory = namedtuple("Scores", "values"), np.zeros(2)
    given = [scores(memory), Box(memory, {"a": memory})]
    taken = snapshot(given)
    memory[:] = 7
    assert json_text(taken) == b'[[[0.0,0.0]],{"values":[0.0,0.0],"more":{"a":[0.0,0.0]}}]'
    assert snapshot(Box) is Box
    assert json_text(snapshot(Late())) == b"{}"


@pytest.mark.parametrize("value", [{"a": [1, np.ones(1)]}, [float("nan"), {2: "b"}], ({1.5},), []])
def test_what_is_written_is_not_copied(value):
    text = json_text(value)
    taken = written(value)
    assert isinstance(taken, orjson.Fragment)
    assert json_text([taken, 1]) == b"[%b,1]" % text


@pytest.mark.parametrize("value", ["a", b"a", 1.5, None, np.float32(1)])
def test_what_is_no_container_is_not_written(value):
    assert written(value) is value


def test_what_cannot_be_written_is_copied():
    """The edge says what is wrong with it, and in which row."""
    value = [{"a": object()}]
    assert written(value) == value
    assert written(value) is not value
