from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import results, rows, tensors
from kserve_torch.errors import InvalidInput
from kserve_torch.messages import Tensor


def tensor(values, datatype="INT64", name="x", **members):
    return Tensor(name=name, datatype=datatype, array=np.asanyarray(values), **members)


def words(*values, name="x"):
    return tensor(np.array(values, object), "BYTES", name)


def test_a_tensor_as_lists():
    assert rows.to_row(tensor([[1, 2]], parameters={"p": 1})) == {
        "name": "x",
        "shape": [1, 2],
        "datatype": "INT64",
        "data": [[1, 2]],
        "parameters": {"p": 1},
    }
    assert "parameters" not in rows.to_row(tensor([1]))


def test_the_class_to_explain_is_where_handlers_look_for_it():
    assert rows.to_row(tensor([1], parameters={"target": 3}))["target"] == 3
    assert "target" not in rows.to_row(tensor([1], parameters={"p": 1}))


def test_a_tensor_as_an_array():
    source = tensor([1, 2])
    data = rows.to_row(source, arrays=True)["data"]
    assert data.base is source.array
    assert not data.flags.writeable
    assert source.array.flags.writeable


@pytest.mark.parametrize(
    ("sent", "data"),
    [
        (words("a"), "a"),
        (words(b"a"), bytearray(b"a")),
        (words("a", b"b"), ["a", bytearray(b"b")]),
        (words(), []),
        (tensor(np.empty((2, 0), object), "BYTES"), [[], []]),
        (tensor(np.array([["a"], ["b"]], object), "BYTES"), [["a"], ["b"]]),
        (tensor(np.array("a", object), "BYTES"), "a"),
        (tensor(7), 7),
        (tensor(np.array([0x3F80], np.uint16), "BF16"), [1.0]),
        (tensor(np.array([0.5], "f2"), "FP16"), [0.5]),
    ],
)
def test_data(sent, data):
    assert rows.data_of(sent) == data
    assert type(rows.data_of(sent)) is type(data)


class Watched(np.ndarray):
    """Lists are made of few elements at once."""

    def tolist(self):
        assert self.size <= rows.PORTION
        return super().tolist()


@pytest.mark.parametrize("shape", [(0,), (13,), (6, 2), (2, 6), (3, 0), (2, 3, 4), (3, 1, 1, 7)])
def test_lists_of_many_elements_are_made_in_portions(shape, monkeypatch):
    monkeypatch.setattr(rows, "PORTION", 4)
    values = np.arange(np.prod(shape)).reshape(shape)
    assert rows.data_of(tensor(values.view(Watched))) == values.tolist()


@pytest.mark.parametrize("shape", [(1,), ()])
def test_bf16_arrays_are_in_single_precision(shape):
    values = rows.data_of(tensor(np.full(shape, 0x3F80, np.uint16), "BF16"), arrays=True)
    assert values.dtype == np.float32
    assert values.shape == shape
    assert values == 1.0


@pytest.mark.parametrize("row", [{"data": 1}, {}, [1], [], "a", 1, None, bytearray(b"x")])
def test_rows_that_are_no_tensors_pass(row):
    assert rows.to_row(row) == row


def test_base64():
    assert rows.in_base64(words(b"\xff", "kept")).array.tolist() == ["/w==", "kept"]
    scalar = rows.in_base64(tensor(np.array(b"a", object), "BYTES"))
    assert (scalar.shape, scalar.array.item()) == ((), "YQ==")
    assert rows.in_base64(words()).shape == (0,)
    numbers = tensor([1])
    assert rows.in_base64(numbers) is numbers


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ([[100_001, 0]], 'inputs[0] "0".shape: [100001, 0] makes it 100001 nested lists, over 100'),
        ([[400, 400, 0, 7]], 'inputs[0] "0".shape: [400, 400, 0, 7] makes it 160400 nested lists'),
        ([[60_000, 0], [1], [60_000, 0]], 'inputs[2] "2".shape: [60000, 0] makes it 120000 nested'),
        ([[200_000, *[1] * 5]], 'inputs[0] "0".shape: [200000, 1, 1, 1, 1, 1] makes it 1000000'),
    ],
)
def test_inputs_of_more_lists_than_elements(shapes, text):
    inputs = [tensor(np.zeros(shape), name=f"{i}") for i, shape in enumerate(shapes)]
    with pytest.raises(InvalidInput) as caught:
        rows.bounded(inputs)
    assert caught.value.message.startswith(text)


def test_inputs_of_many_lists():
    for shape in ([200_000, 1, 1, 1], [100_000, 0], [0, 2**40], [1] * 32, [20_000, *[1] * 6]):
        inputs = [tensor(np.zeros(shape))]
        assert rows.bounded(inputs) is inputs


def test_split_one_input():
    parts = rows.split_batch([tensor([[1, 2], [3, 4]])])
    assert [rows.to_row(part)["data"] for part in parts] == [[1, 2], [3, 4]]
    assert parts[0].shape == (2,)
    assert list(rows.split_batch([tensor(np.zeros((0, 2)))])) == []


def test_rows_are_made_as_they_are_asked_for(monkeypatch):
    made = []
    monkeypatch.setattr(rows, "_part", lambda each, i: made.append((each.name, i)))
    a, b = tensor([1, 2], name="a"), tensor([3, 4], name="b")
    for inputs in ([a], [a, b]):
        parts = rows.split_batch(inputs)
        assert (len(parts), made) == (2, [])
        list(parts)
        assert made == [(each.name, i) for i in range(2) for each in inputs]
        made.clear()


def test_split_several_inputs():
    pairs = tensor(np.array([["r", "s"], ["t", "u"]], object), "BYTES", "p")
    parts = rows.split_batch([tensor([1, 2], name="a"), words("p", b"q", name="w"), pairs])
    assert [rows.to_row(part) for part in parts] == [
        {"a": 1, "w": "p", "p": ["r", "s"]},
        {"a": 2, "w": bytearray(b"q"), "p": ["t", "u"]},
    ]


def test_the_rows_of_one_input_have_its_parameters():
    parts = rows.split_batch([tensor([1, 2], parameters={"a": 3})])
    assert [rows.to_row(part)["parameters"] for part in parts] == [{"a": 3}] * 2


def test_the_class_to_explain_is_in_rows_of_several_inputs():
    parameters = {"target": 5, "other": 6}
    inputs = [tensor([1, 2], name="a"), tensor([3, 4], name="b", parameters=parameters)]
    assert [row["target"] for row in rows.split_batch(inputs)] == [5, 5]
    assert rows.split_batch(inputs)[0].keys() == {"a", "b", "target"}
    inputs.append(tensor([6, 7], name="target"))
    assert [rows.to_row(row)["target"] for row in rows.split_batch(inputs)] == [6, 7]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([tensor(1)], 'inputs[0] "x".shape: shape [], expected a batch dimension'),
        (
            [tensor([1, 2]), tensor([1], name="y")],
            'inputs[1] "y".shape: shape [1], expected 2 rows as in inputs[0]',
        ),
        ([tensor([1]), tensor(1, name="y")], 'inputs[1] "y".shape: shape [], expected 1 rows'),
        (
            [tensor([0] * 9_000), *(tensor(np.zeros((9_000, 0)), name=f"{i}") for i in range(15))],
            'inputs[15] "14".shape: [9000, 0] makes it 135000 nested lists, over 127000',
        ),
    ],
)
def test_inputs_that_are_no_batch(inputs, text):
    with pytest.raises(InvalidInput) as caught:
        rows.split_batch(inputs)
    assert caught.value.message.startswith(text)


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=1, max_size=5),
    st.booleans(),
)
def test_a_batch_that_is_split_can_be_joined(values, arrays):
    sent = tensors.tensor_from_json("x", "INT64", [-1, 3], values, "inputs[0]")
    data = [rows.to_row(part, arrays)["data"] for part in rows.split_batch([sent])]
    (joined,) = results.join_batch(data, ["x"])
    assert (joined.name, joined.datatype) == ("x", "INT64")
    np.testing.assert_array_equal(joined.array, sent.array)
