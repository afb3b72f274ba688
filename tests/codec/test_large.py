"""Large v2 bodies give what `document` gives for them, values and errors alike."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import large, pieces, v2
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.errors import InvalidInput


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_too_small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "WORTH", 0)
        yield


@pytest.fixture(autouse=True, scope="module", params=[pieces.PIECE, 1])
def _pieces(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", request.param)
        yield


def body(**tensor: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1], "data": [1, 2.5], **tensor}
    return json.dumps({"inputs": [tensor], "id": "7", "parameters": {"a": {"b": [1]}}}).encode()


def outcome(text: bytes, header_length: int | None = None) -> Any:
    """What the codec makes of a body: comparable, tensors as their bytes."""
    try:
        read = v2.decode(text, header_length)
    except InvalidInput as error:
        return error.message
    tensors = [
        (t.name, t.datatype, t.array.shape, t.array.dtype, t.array.tolist(), dict(t.parameters))
        for t in read.inputs
    ]
    return repr((read.id, tensors, dict(read.parameters), read.outputs, read.binary_output))


def same(text: bytes, header_length: int | None = None) -> None:
    read = outcome(text, header_length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large, "parse_object", lambda _: None)
        assert read == outcome(text, header_length)


@pytest.mark.parametrize("datatype", [*DATATYPES, "FP8", 7, None])
@pytest.mark.parametrize(
    "data",
    [
        [11, 22, 33],
        [1, 2.5],
        [0.1, -0.0, 1e-320],
        [1e39, 1],
        [-1, 1],
        [2**31, 2**53 + 1, 2**63 - 1],
        [2**63],
        [2**64 - 1, 0],
        [2**64],
        [10**22],
        [300],
        [True, False],
        [1, True],
        [1, None],
        [1, "x"],
        ["x", 1],
        ["a", "b"],
        [[1, 2], [3, 4]],
        [[1, 2], [3]],
        [[[1], [2]], [[3], [4]]],
        [[[1]], [2]],
        [[1], 2],
        [[1], []],
        [[], []],
        [[1, 2], [3, None]],
        [["[1]"], ["]"]],
        [[[[[[[[[1]]]]]]]]],
        [1, [2]],
        [{"a": 1}],
        [],
        7,
        None,
        {"a": 1},
    ],
)
def test_every_datatype(datatype: object, data: object) -> None:
    text = body(datatype=datatype, data=data)
    same(text)
    same(text.replace(b", ", b","))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"\xef\xbb\xbf" + body(),
        body() + b" x",
        body()[:-1],
        body().replace(b'"7"', b'"\xff"'),
        body().replace(b'"7"', b'"\\ud800"'),
        body().replace(b"2.5", b"NaN"),
        body().replace(b"2.5", b"1e999"),
        body().replace(b"2.5", b"01"),
        body().replace(b"2.5", b"[2, 3]]"),
        body(data=[[1, 2], [3, 4]]).replace(b"], [", b"] [", 1),
        body(data=[[1, 2], [3, 4]]).replace(b"4]", b"]"),
        body(data=[[1, 2], [3, 4]]).replace(b"2]", b"2"),
        body(data=[[1, 2], [3, 4]]).replace(b"]", b" \n]  "),
        body(data=[[1, 2], [3, 4]]).replace(b"[1", b"-[1"),
        body(data=[[1, 2], [3, 4]]).replace(b"[1", b"5[1"),
        body(data=[[1, 2], [3, 4]]).replace(b"[1", b"1["),
        body(data=[[1, 2], [3, 4]]).replace(b"[1", b"[1 5"),
        body(data=[[1, 2], [3, 4]]).replace(b"2]", b"]2"),
        body(data=[[1, 2], [3, 4]]).replace(b"2]", b"2]5"),
        body(data=[[1, 2], [3, 4]]).replace(b"4]", b"]4"),
        body(data=[[1], [2]]).replace(b"[1]", b"1[]"),
        body(data=[[1], [2]]).replace(b"[1]", b"[]1"),
        body(data=[[[1], [2]], [[3], [4]]]).replace(b"[2]]", b"[2]3]"),
        body().replace(b'"id"', b'"inputs"'),
        body().replace(b'"shape"', b'"data"'),
        b'{"inputs": 1}',
        b'{"inputs": [1]}',
        b'{"inputs": {"name": "x"}}',
        b'{"inputs": []}',
        b'{"inputs": [{}]}',
        b'{"inputs": null, "id": 1}',
        b'{"inputs": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        body(parameters={"binary_data_size": 4}),
        body(shape=[3]),
        body(shape="x"),
        body(name="data"),
        body(name='"data": [1]'),
        body(name='\\"data": [1]'),
        body(parameters={"data": [1]}),
        body(parameters={"data": [[1]]}),
        body(parameters={"data": 1}),
        b'{"parameters":{"data":[5]},' + body(data=0)[1:],
        b'{"parameters":{"data":[5]},' + body(data=[0]).replace(b"data", b"d\\u0061ta")[1:],
        body().replace(b'"data": ', b'"data"\n:\t'),
        body().replace(b'"data": ', b'"data":\f'),
        body().replace(b"2.5]", b"2.5]5"),
        body().replace(b"2.5]", b"2.5,]"),
        body().replace(b"2.5]", b'2.5], "data": [3]'),
        body().replace(b'"id"', b'"data": [0], "id"'),
        body().replace(b"}]", b"}, [0]]"),
        body().replace(b"}]", b'}, "data"]'),
        body().replace(b'"inputs": ', b'"inputs": [{"data": [1]}], "inputs": '),
    ],
)
def test_what_is_no_request(text: bytes) -> None:
    same(text)


def test_beside_binary_data() -> None:
    described = {"name": "y", "datatype": "FP32", "shape": [1]}
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2.5]},
        {**described, "parameters": {"binary_data_size": 4}},
    ]
    head = json.dumps({"inputs": inputs}).encode()
    same(head + b"\0\0\x80\x3f", len(head))
    same(head + b"\0\0\x80", len(head))


@given(st.data(), st.sampled_from([[1, 2.5, -3e5, 0.125], [[1, 2.5], [-3e5, 0.125]]]))
def test_a_damaged_body(data: st.DataObject, numbers: list[Any]) -> None:
    text = bytearray(body(data=numbers))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b"[", b"]", b"{", b'"', b",", b"0", b"-", b"e9", b"\\", b"\xff"])
        )
    same(bytes(text))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_floats_are_read_to_the_bit(values: list[float]) -> None:
    request = v2.decode(body(data=values))
    assert request.inputs[0].array.tobytes() == np.array(values, "<f4").tobytes()


def test_it_is_used_and_handlers_may_write_into_what_it_reads() -> None:
    for datatype, dtype in (("FP64", "float64"), ("INT64", "int64"), ("FP32", "float32")):
        read = large.parse_object(body(datatype=datatype, data=[1, 2]))
        assert read is not None
        assert isinstance(read["inputs"][0]["data"], np.ndarray)
        array = v2.decode(body(datatype=datatype, data=[1, 2])).inputs[0].array
        assert array.dtype == dtype
        assert array.flags.writeable


def test_it_is_used_for_nested_lists() -> None:
    read = large.parse_object(body(data=[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]))
    assert read is not None
    assert read["inputs"][0]["data"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_it_is_used_whatever_the_names() -> None:
    for name in ("data", "\u00e9", "[", "inputs"):
        read = large.parse_object(body(name=name).decode("unicode_escape").encode())
        assert read is not None
        assert read["inputs"][0]["name"] == name


def test_small_bodies_go_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "WORTH", 4096)
    assert large.parse_object(body()) is None
    tensor = b'{"name":"x","datatype":"FP32","shape":[1],"data":[1]}'
    assert large.parse_object(b'{"inputs":[%b]}' % b",".join([tensor] * 1000)) is None
    assert large.parse_object(body(data=[1] * 5000)) is not None


def test_parameters_that_nest_deeply() -> None:
    for depth in (100, 250, 300, 900):
        nested = b"[" * depth + b"]" * depth
        head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}],'
        same(b'%b"parameters":{"a":%b}}' % (head, nested))
