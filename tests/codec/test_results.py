from __future__ import annotations

from datetime import date

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import v2, v2_reply
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.codec.results import flattened, join_batch, result_to_tensors, taken
from kserve_torch.codec.v2 import V2Request
from kserve_torch.errors import HandlerError
from kserve_torch.messages import Tensor

BF16_ONE = 0x3F80


def only(result):
    (tensor,) = result_to_tensors([result], ["x"])
    assert tensor.name == "x"
    assert tensor.array.dtype.isnative
    values = tensor.array.reshape(-1).tolist()
    assert not any(isinstance(value, bytearray | memoryview) for value in values)
    return tensor.datatype, tensor.shape, values


@pytest.mark.parametrize("name", sorted(DATATYPES.keys() - {"BF16"}))  # which numpy lacks
def test_arrays_of_every_datatype(name):
    assert only(np.zeros(2, DATATYPES[name].dtype))[:2] == (name, (2,))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (2, ("INT64", (1,), [2])),
        (0.5, ("FP64", (1,), [0.5])),
        (True, ("BOOL", (1,), [True])),
        (2**64 - 1, ("UINT64", (1,), [2**64 - 1])),
        ("a", ("BYTES", (1,), ["a"])),
        (b"\xff", ("BYTES", (1,), [b"\xff"])),
        (bytearray(b"a"), ("BYTES", (1,), [b"a"])),
        (None, ("BYTES", (1,), ["null"])),
        (date(2026, 11, 23), ("BYTES", (1,), ["2026-11-23"])),
        ([date(2026, 11, 23), None], ("BYTES", (2,), ["2026-11-23", "null"])),
        ({"tabby": 0.4}, ("BYTES", (1,), ['{"tabby":0.4}'])),
        ({"a": np.ones(1), "b": 2}, ("BYTES", (1,), ['{"a":[1.0],"b":2}'])),
        ({}, ("BYTES", (1,), ["{}"])),
        ([], ("FP64", (0,), [])),
        ([1, 2], ("INT64", (2,), [1, 2])),
        ([1, 2.5], ("FP64", (2,), [1.0, 2.5])),
        ((1, 2), ("INT64", (2,), [1, 2])),
        ([[1, 2], [3, 4]], ("INT64", (2, 2), [1, 2, 3, 4])),
        ([2**63 + 1, 1], ("UINT64", (2,), [2**63 + 1, 1])),
        ([[1], [2**64 - 1]], ("UINT64", (2, 1), [1, 2**64 - 1])),
        ([np.uint64(2**63), 1], ("UINT64", (2,), [2**63, 1])),
        ([2**63 + 1, -1], ("BYTES", (2,), ["9223372036854775809", "-1"])),
        ([[2**63 + 1], [-1]], ("BYTES", (2,), ["[9223372036854775809]", "[-1]"])),
        ([np.uint64(5), np.int64(-(2**63))], ("BYTES", (2,), ["5", f"{-(2**63)}"])),
        ([2**63 + 1, 0.5], ("FP64", (2,), [2.0**63, 0.5])),
        (2**80, ("BYTES", (1,), [str(2**80)])),
        ([2**80, 1], ("BYTES", (2,), [str(2**80), "1"])),
        ({"a": 2**80}, ("BYTES", (1,), [f'{{"a": {2**80}}}'])),
        ({"a": "\ud800"}, ("BYTES", (1,), ['{"a": "\\ud800"}'])),
        ([1, float("inf"), -1e300], ("FP64", (3,), [1.0, float("inf"), -1e300])),
        ([1, float("nan")], ("FP64", (2,), None)),
        ([[True], [False]], ("BOOL", (2, 1), [True, False])),
        ([["a", "b"]], ("BYTES", (1, 2), ["a", "b"])),
        (["a", b"b"], ("BYTES", (2,), ["a", b"b"])),
        ([bytearray(b"ab"), bytearray(b"cd")], ("BYTES", (2,), [b"ab", b"cd"])),
        ([[bytearray(b"ab")], [memoryview(b"c")]], ("BYTES", (2, 1), [b"ab", b"c"])),
        ([["a", "b"], ["c"]], ("BYTES", (2,), ['["a","b"]', '["c"]'])),
        ([["a"], "b"], ("BYTES", (2,), ['["a"]', "b"])),
        ([[1, 2], [3]], ("BYTES", (2,), ["[1,2]", "[3]"])),
        ([1, "a"], ("BYTES", (2,), ["1", "a"])),
        (["a", 1], ("BYTES", (2,), ["a", "1"])),
        ([["a", 1], ["b", 2]], ("BYTES", (2,), ['["a",1]', '["b",2]'])),
        ([True, "a"], ("BYTES", (2,), ["true", "a"])),
        ([1.5, None], ("BYTES", (2,), ["1.5", "null"])),
        ([{"box": [1, 2]}, {"box": []}], ("BYTES", (2,), ['{"box":[1,2]}', '{"box":[]}'])),
        ([float("nan")], ("FP64", (1,), None)),
        (np.float32(0.5), ("FP32", (1,), [0.5])),
        (np.array([[1, 2]], "u1"), ("UINT8", (1, 2), [1, 2])),
        (np.array([1, 2], ">i4"), ("INT32", (2,), [1, 2])),
        (np.array(["a"]), ("BYTES", (1,), ["a"])),
        (np.array([{"k": 1}, None], object), ("BYTES", (2,), ['{"k":1}', "null"])),
        (np.zeros((2, 0), "f2"), ("FP16", (2, 0), [])),
        (torch.tensor([[1.5]]), ("FP32", (1, 1), [1.5])),
        (torch.tensor(3), ("INT64", (1,), [3])),
        (torch.ones(1, requires_grad=True), ("FP32", (1,), [1.0])),
        (torch.ones(1, dtype=torch.bfloat16, requires_grad=True), ("BF16", (1,), [0x3F80])),
        (torch.ones(2, dtype=torch.bfloat16), ("BF16", (2,), [BF16_ONE, BF16_ONE])),
        ([torch.tensor(1), torch.tensor(2)], ("INT64", (2,), [1, 2])),
        ([torch.ones(1, dtype=torch.bfloat16)] * 2, ("BF16", (2, 1), [BF16_ONE, BF16_ONE])),
        ([[torch.ones(2, dtype=torch.bfloat16)]] * 2, ("FP32", (2, 1, 2), [1.0] * 4)),
        ([[torch.ones(1, requires_grad=True)], [torch.ones(1)]], ("FP32", (2, 1, 1), [1.0, 1.0])),
        ([0.5, torch.tensor(1.0, requires_grad=True)], ("FP64", (2,), [0.5, 1.0])),
        ([[torch.ones(2, dtype=torch.bfloat16)], []], ("BYTES", (2,), ["[[1.0,1.0]]", "[]"])),
        ([[torch.ones(1, requires_grad=True)], None], ("BYTES", (2,), ["[[1.0]]", "null"])),
        (torch._neg_view(torch.ones(1)), ("FP32", (1,), [-1.0])),
        ([torch._neg_view(torch.ones(1)), 1.0], ("BYTES", (2,), ["[-1.0]", "1.0"])),
        (torch.tensor([1j]).conj().imag, ("FP32", (1,), [-1.0])),
        ([np.ones(2), np.ones(1)], ("BYTES", (2,), ["[1.0,1.0]", "[1.0]"])),
        ([np.ones(1, "f4"), np.ones(1, "i8")], ("FP64", (2, 1), [1.0, 1.0])),
        ([np.int64(3), np.float32(0.5)], ("FP64", (2,), [3.0, 0.5])),
        ([np.int64(1), np.uint64(2**63)], ("UINT64", (2,), [1, 2**63])),
        ([torch.tensor(3), torch.tensor(0.5, requires_grad=True)], ("FP64", (2,), [3.0, 0.5])),
        ([np.ones(1), np.array(["a"])], ("BYTES", (2,), ["[1.0]", '["a"]'])),
    ],
)
def test_one_result(result, expected):
    for same in (result, taken(result)):
        datatype, shape, values = only(same)
        assert (datatype, shape) == expected[:2]
        assert expected[2] is None or values == expected[2]


def test_lists_and_objects_are_converted_when_they_are_taken():
    assert isinstance(taken([1]), Tensor)
    assert isinstance(taken(({"a": 1},)), Tensor)
    assert isinstance(taken({"a": 1}), Tensor)
    arrays = {"a": np.ones(1)}
    assert taken(arrays)["a"] is not arrays["a"]
    with pytest.raises(HandlerError, match='output "x": object'):
        only(taken([object()]))


class Foreign:
    """A tensor of another library, which can become a numpy array."""

    dtype = "int32"

    def numpy(self):
        return np.array([1, 2], "i4")


def test_tensors_of_other_libraries():
    assert only(Foreign()) == ("INT32", (2,), [1, 2])


def test_names_are_the_inputs():
    outputs = result_to_tensors([1, 2], ["a", "b"])
    assert [tensor.name for tensor in outputs] == ["a", "b"]
    outputs = result_to_tensors([1, 2, 3], ["a"])
    assert [tensor.name for tensor in outputs] == ["a", "output-1", "output-2"]


def test_a_dict_of_arrays_is_several_outputs():
    result = {"boxes": torch.zeros(2, 4), "scores": np.ones(2)}
    assert [tensor.name for tensor in result_to_tensors([result], ["x"])] == ["boxes", "scores"]
    outputs = result_to_tensors([result, 1], ["x", "y"])
    assert [tensor.name for tensor in outputs] == ["x.boxes", "x.scores", "y"]


def test_flatten():
    tensor = flattened(*result_to_tensors([[[1, 2]]], ["x"]))
    assert tensor.shape == (2,)
    tensor = flattened(*join_batch([[1, 2], [3, 4]], ["x"]))
    assert tensor.shape == (4,)


@pytest.mark.gpu
def test_tensors_on_a_gpu_in_nested_lists():
    tensor = torch.ones(2, device="cuda")
    assert only([[tensor], [tensor]]) == ("FP32", (2, 1, 2), [1.0] * 4)


def test_a_name_that_cannot_be_sent():
    with pytest.raises(HandlerError, match="the name holds a lone surrogate"):
        result_to_tensors([{"\ud800": np.ones(1)}], ["x"])


def test_a_list_that_holds_itself():
    loop: list = []
    loop.append(loop)
    with pytest.raises(HandlerError):
        only(loop)


@pytest.mark.parametrize(
    "result",
    [
        *(1j, np.array([1j]), object(), [object()], {"a": object()}),
        *(torch.eye(2).to_sparse(), [torch.eye(2).to_sparse()], torch.empty(1, device="meta")),
        [1, torch.eye(2).to_sparse()],
        {"a": torch.ones(1).to(torch.float8_e4m3fn)},
    ],
)
def test_results_that_no_datatype_holds(result):
    with pytest.raises(HandlerError, match=r'^output "[xa]": '):
        only(result)


@pytest.mark.parametrize(
    ("results", "datatype", "shape"),
    [
        ([1, 2], "INT64", (2,)),
        ([[1, 2], [3, 4]], "INT64", (2, 2)),
        ([np.ones((1, 3), "f4")] * 2, "FP32", (2, 1, 3)),
        ([{"a": 1}, {"b": 2}], "BYTES", (2,)),
        ([[1], [2, 3]], "BYTES", (2,)),
        ([torch.ones(1), 1.0], "BYTES", (2,)),
        ([], "FP64", (0,)),
    ],
)
def test_join(results, datatype, shape):
    (tensor,) = join_batch(results, ["x"])
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, shape)


def test_join_of_named_outputs():
    rows = [{"a": np.ones(2), "b": torch.tensor(i)} for i in range(3)]
    outputs = join_batch(rows, ["x"])
    assert [(t.name, t.shape) for t in outputs] == [("a", (3, 2)), ("b", (3,))]
    (mixed,) = join_batch([rows[0], {"a": np.ones(2)}], ["x", "y"])
    assert (mixed.name, mixed.datatype) == ("output-0", "BYTES")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=10,
)


@given(st.lists(JSON_VALUES, max_size=3))
def test_any_json_result_can_be_sent(results):
    for outputs in (result_to_tensors(results, []), join_batch(results, [])):
        body, _ = v2_reply.encode("m", "1", "7", outputs, V2Request(inputs=[]))
        again = v2.from_document({"inputs": orjson.loads(body)["outputs"] or [_FILLER]})
        assert len(again.inputs) == max(len(outputs), 1)


_FILLER = {"name": "f", "shape": [0], "datatype": "FP32", "data": []}
