from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kserve_torch.codec import buffers, datatypes, tensors
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.messages import Tensor

WHERE = 'inputs[0] "x"'


def from_json(datatype, shape, data):
    return tensors.tensor_from_json("x", datatype, shape, data, WHERE)


def from_raw(datatype, shape, buffer):
    return buffers.tensor_from_raw("x", datatype, shape, buffer, WHERE)


def from_typed(datatype, shape, contents):
    return tensors.tensor_from_typed("x", datatype, shape, contents, WHERE)


def refusal(datatype, shape, data):
    try:
        from_json(datatype, shape, data)
    except InvalidInput as error:
        return error.message
    return None


def elements(tensor):
    """Elements as bytes, which compare NaN, -0.0 and str or bytes alike."""
    return bytes(buffers.to_raw(tensor))


# --- round trips ----------------------------------------------------------------------------------


@given(st.floats(width=16, allow_nan=False))
def test_half_floats_go_out_in_single_precision(value):
    half = Tensor(name="x", datatype="FP16", array=np.array([value], "f2"), parameters={"a": 1})
    sent = tensors.in_json(half)
    assert (sent.datatype, sent.array.dtype, sent.array[0]) == ("FP32", np.float32, value)
    assert sent.parameters == {"a": 1}


@given(hnp.arrays(np.uint16, hnp.array_shapes(max_dims=3)))
def test_bf16_survives_fp32(bits):
    sent = tensors.in_json(Tensor(name="x", datatype="BF16", array=bits))
    assert sent.datatype == "FP32"
    np.testing.assert_array_equal(datatypes.fp32_to_bf16(sent.array), bits)


def test_raw_is_a_view_both_ways():
    blob = np.arange(6, dtype="<f4").tobytes()
    tensor = from_raw("FP32", [2, 3], memoryview(blob))
    assert not tensor.array.flags.owndata
    assert not tensor.array.flags.writeable
    raw = buffers.to_raw(tensor)
    assert isinstance(raw, memoryview)
    assert np.shares_memory(np.frombuffer(raw, np.uint8), tensor.array)


def test_raw_of_transposed_and_big_endian_arrays():
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    raw = buffers.to_raw(Tensor(name="x", datatype="INT32", array=array))
    assert bytes(raw) == array.astype("<i4").tobytes()


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "data", "expected"),
    [
        (-1, [1, 2, 3], (3,)),
        ([-1], [1, 2, 3], (3,)),
        (3, [1, 2, 3], (3,)),
        ([], [1], ()),
        ([], 1, ()),
        ([2, -1], [1, 2, 3, 4], (2, 2)),
        ([2, 2], [[1], [2], [3], [4]], (2, 2)),
        ([0], [], (0,)),
        ([0, 5], [], (0, 5)),
        ([0, 3, 224, 224], [], (0, 3, 224, 224)),
        ([100_000, 0], [], (100_000, 0)),
        ([-1], [], (0,)),
        ([1, 2], [[[1, 2]]], (1, 2)),
    ],
)
def test_shapes_that_the_samples_send(shape, data, expected):
    assert from_json("INT64", shape, data).shape == expected


def test_a_bare_string_is_one_element():
    tensor = from_json("BYTES", -1, "this year business is good")
    assert tensor.array.tolist() == ["this year business is good"]


@pytest.mark.parametrize(
    ("shape", "data", "text"),
    [
        ([1, 28, 28], [0] * 783, ".data: 783 elements, shape [1, 28, 28] needs 784"),
        ([], [1, 2], ".data: 2 elements, shape [] needs 1"),
        ([-1, -1], [1], ".shape: [-1, -1] leaves more than one dimension open"),
        ([2, -1], [1, 2, 3], ".data: 3 elements do not fill shape [2, -1]"),
        ([0, -1], [], ".data: 0 elements do not fill shape [0, -1]"),
        ([1.0], [1], ".shape: [1.0] is not a list of integers"),
        ([True], [1], ".shape: [True] is not a list of integers"),
        (True, [1], ".shape: True is not a list of integers"),
        ("1", [1], ".shape: '1' is not a list of integers"),
        (None, [1], ".shape: None is not a list of integers"),
        ([[1]], [1], ".shape: [[1]] is not a list of integers"),
        ([1] * 33, [1], ".shape: 33 dimensions, at most 32 are allowed"),
        ([2**63], [1], ".shape: [9223372036854775808] has a dimension over 9223372036854775807"),
        ([2**62, 4], [], ".data: 0 elements, shape [4611686018427387904, 4] needs 18446744"),
        ([0, 2**62, 2**62], [], ".shape: [0, 4611686018427387904, 4611686018427387904] is too"),
        ([3], [[1, 2], [3]], ".data: ragged, 1 elements at 1 beside 2 elements"),
        ([3], [[1, 2], 3], ".data: ragged, 3 at 1 beside 2 elements"),
        ([3], [1, [2, 3]], ".data[1]: [2, 3] is not an INT64"),
    ],
)
def test_wrong_shapes(shape, data, text):
    with pytest.raises(InvalidInput) as caught:
        from_json("INT64", shape, data)
    assert caught.value.message.startswith(WHERE + text)


@pytest.mark.parametrize("datatype", ["fp32", "FP8", "", None, 7, ["FP32"], {}])
def test_unknown_datatypes(datatype):
    with pytest.raises(InvalidInput, match=r"\.datatype: .* is not one of BOOL, UINT8"):
        from_json(datatype, [1], [1])


# --- elements -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", [1, 2.5], [1.0, 2.5]),
        ("FP64", [2**64 - 1], [float(2**64)]),
        ("BOOL", [True, 0, 1, False], [True, False, True, False]),
        ("UINT64", [2**64 - 1], [2**64 - 1]),
        ("INT64", [-(2**63)], [-(2**63)]),
        ("INT8", [-128, 127], [-128, 127]),
        ("BYTES", ["a", ""], ["a", ""]),
    ],
)
def test_elements_that_lose_nothing(datatype, data, expected):
    assert from_json(datatype, [len(data)], data).array.tolist() == expected


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP32", np.array([[1.5, 2.5]])),
        ("INT8", np.array([[1], [2]])),
        ("BOOL", np.array([[True, False]])),
        ("BYTES", np.array([["a", "b"]])),
        ("BYTES", np.array([["a", "b"]], object)),
    ],
)
def test_arrays_are_flattened_as_lists_are(datatype, array):
    """Callers in the same process may hand one over."""
    tensor = from_json(datatype, [2], array)
    assert (tensor.shape, tensor.array.tolist()) == ((2,), array.reshape(-1).tolist())


@pytest.mark.parametrize(
    ("datatype", "array", "wrong"),
    [
        ("INT8", np.array([[1, 200]]), ".data[1]: 200 is not an INT8"),
        ("INT8", np.array([[1, np.nan]]), ".data[0]: 1.0 is not an INT8"),
        ("INT8", np.array(["a"]), ".data[0]: 'a' is not an INT8"),
        ("BYTES", np.array([[1]]), ".data[0]: 1 is not a string"),
    ],
)
def test_the_wrong_element_of_an_array_is_named(datatype, array, wrong):
    assert refusal(datatype, [array.size], array) == WHERE + wrong


@given(
    data=st.lists(st.integers(-150, 150) | st.sampled_from([1.0, "1", None]), min_size=1)
    | st.builds(lambda good, bad: [1] * good + [bad], st.integers(0, 70), st.just(128))
)
def test_the_first_of_the_wrong_elements_is_named(data):
    wrong = [i for i, x in enumerate(data) if type(x) is not int or not -128 <= x <= 127]
    named = f"{WHERE}.data[{wrong[0]}]: {data[wrong[0]]!r} is not an INT8" if wrong else None
    assert refusal("INT8", [len(data)], data) == named


def test_null_is_nan_in_float_tensors_only():
    assert np.isnan(from_json("FP32", [2], [None, 1]).array).tolist() == [True, False]
    with pytest.raises(InvalidInput, match=r"data\[0\]: None is not an INT32"):
        from_json("INT32", [1], [None])
    with pytest.raises(InvalidInput, match=r"data\[1\]: 'a' is not an FP32"):
        from_json("FP32", [2], [None, "a"])


@pytest.mark.parametrize(
    ("datatype", "bad"),
    [
        ("INT32", 1.5),
        ("INT32", 1.0),
        ("INT8", 128),
        ("INT64", 2**63),
        ("UINT8", -1),
        ("UINT8", 256),
        ("UINT64", -1),
        ("UINT64", 2**64),
        ("UINT32", "1"),
        ("FP32", "1"),
        ("FP32", 1e39),
        ("FP32", -1e39),
        ("FP64", 10**400),
        ("FP64", {}),
        ("FP64", [1.0]),
        ("BOOL", "false"),
        ("BOOL", 2),
        ("BOOL", -1),
        ("BOOL", 0.0),
        ("BOOL", None),
        ("BYTES", 1),
        ("BYTES", None),
        ("BYTES", {"b64": ""}),
    ],
)
def test_the_wrong_element_is_named(datatype, bad):
    good = "" if datatype == "BYTES" else 1
    with pytest.raises(InvalidInput) as caught:
        from_json(datatype, [3], [good, bad, good])
    assert caught.value.message.startswith(f"{WHERE}.data[1]: ")


def test_long_elements_are_cut_in_the_text():
    with pytest.raises(InvalidInput) as caught:
        from_json("FP32", [1], ["x" * 10_000])
    assert len(caught.value.message) < 120


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_have_no_json_form(datatype):
    with pytest.raises(InvalidInput, match="no JSON form, use binary data"):
        from_json(datatype, [1], [1.0])
    with pytest.raises(InvalidInput, match="raw_input_contents only"):
        from_typed(datatype, [1], [1.0])


def test_infinities_given_as_such_stay():
    assert from_typed("FP32", [2], [math.inf, -math.inf]).array.tolist() == [math.inf, -math.inf]


def test_output_that_is_not_utf8_asks_for_binary():
    tensor = Tensor(name="y", datatype="BYTES", array=np.array([b"\xff"], object))
    with pytest.raises(HandlerError, match='output "y" is not UTF-8 text; request it as binary'):
        tensors.to_json_data(tensor)


# --- raw buffers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "shape", "buffer", "text"),
    [
        ("FP32", [2], b"\0" * 7, ": 7 bytes are not a multiple of 4"),
        ("FP32", [2], b"\0" * 4, ".data: 1 elements, shape [2] needs 2"),
        ("FP32", [1], b"", ".data: 0 elements, shape [1] needs 1"),
        ("BOOL", [2], b"\1\2", ".data[1]: 2 is not a BOOL"),
        ("BYTES", [1], b"\1\0\0", ".data[0]: its length prefix is cut short"),
        ("BYTES", [1], b"\2\0\0\0a", ".data[0]: length is 2, 1 bytes are left"),
        ("BYTES", [1], b"\xff\xff\xff\xff", ".data[0]: length is 4294967295, 0 bytes are left"),
        ("BYTES", [1], b"\0\0\0\0\0\0\0\0", ".data: 2 elements, shape [1] needs 1"),
    ],
)
def test_wrong_buffers(datatype, shape, buffer, text):
    with pytest.raises(InvalidInput) as caught:
        from_raw(datatype, shape, buffer)
    assert caught.value.message.startswith(WHERE + text)


@given(st.sampled_from(list(DATATYPES)), st.binary(max_size=64), st.integers(-2, 20))
def test_any_buffer_is_read_or_refused(datatype, buffer, dim):
    try:
        tensor = from_raw(datatype, [dim], buffer)
    except InvalidInput:
        return
    assert elements(tensor) == buffer


def test_bytes_elements_are_length_prefixed():
    buffer = struct.pack("<I", 3) + b"abc" + struct.pack("<I", 0)
    assert from_raw("BYTES", [2], buffer).array.tolist() == [b"abc", b""]


# --- anything JSON --------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.sampled_from(list(DATATYPES)), JSON_VALUES, JSON_VALUES)
def test_any_json_is_read_or_refused(datatype, shape, data):
    for of in (shape, -1):
        message = refusal(datatype, of, data)
        assert message is None or message.startswith(WHERE)
