from __future__ import annotations

import base64
import json

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import v1
from kserve_torch.codec.v1 import V1Request
from kserve_torch.codec.v2 import V2Request
from kserve_torch.errors import HandlerError, InvalidInput, UnsupportedContent
from kserve_torch.messages import Verb

JSON = "application/json"
BODY = b'{"instances":[{"data":"a"},1,"b",[2]],"parameters":{"k":1}}'
INSTANCES = [{"data": "a"}, 1, "b", [2]]


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        JSON,
        "application/json; charset=utf-8",
        'Application/JSON;charset="UTF-8"',
        "application/ld+json",
        "application/cloudevents+json",
        "application/x-www-form-urlencoded",
        "application/octet-stream",
        "text/plain",
    ],
)
def test_json_is_read_under_any_of_these_types(content_type):
    decoded = v1.decode(BODY, content_type)
    assert decoded.instances == INSTANCES
    assert decoded.parameters == {"k": 1}
    assert decoded.content_types == {}
    tensors = v1.decode(
        b'{"inputs": [{"name": "x", "shape": [], "datatype": "INT8", "data": 1}]}', content_type
    )
    assert [tensor.name for tensor in tensors.inputs] == ["x"]


@pytest.mark.parametrize("charset", ["utf-16", "UTF-32", "utf-8-sig"])
def test_json_in_another_charset(charset):
    sent = '{"instances":["ä"]}'.encode(charset)
    assert v1.decode(sent, f"{JSON}; charset={charset}").instances == ["ä"]


def test_empty_instances_are_no_error():
    assert v1.decode(b'{"instances":[]}', JSON) == V1Request(instances=[])


def test_an_image_is_one_instance():
    decoded = v1.decode(b"\x89PNG", "image/png; x=y")
    assert decoded.instances == [{"data": bytearray(b"\x89PNG")}]
    assert type(decoded.instances[0]["data"]) is bytearray
    assert decoded.content_types == {"data": "image/png"}


@pytest.mark.parametrize("sent", [b"\x00\x01", b"{", b'{"a":1}', b" {]"])
def test_opaque_bytes_are_one_instance(sent):
    decoded = v1.decode(sent, "application/octet-stream")
    assert decoded.instances == [{"data": bytearray(sent)}]


def test_opaque_bytes_may_hold_a_request():
    body = b'\n {"instances": [1]}'
    assert v1.decode(body, "application/octet-stream").instances == [1]


def test_text_is_one_instance():
    assert v1.decode("hällo".encode(), "text/plain").instances == [{"data": "hällo"}]
    latin = v1.decode("hällo".encode("latin-1"), "text/plain; charset=ISO-8859-1")
    assert latin.instances == [{"data": "hällo"}]


def test_v2_inputs_are_read_as_v2():
    x = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    decoded = v1.decode(orjson.dumps({"inputs": [x]}), JSON)
    assert isinstance(decoded, V2Request)
    assert decoded.inputs[0].name == "x"
    assert isinstance(v1.decode(b'{"inputs":7,"instances":[]}', JSON), V1Request)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"", "Unrecognized request format: "),
        (b'{"instances":[1]', "Unrecognized request format: unexpected end of data"),
        (b'{"instances":["\xff"]}', "Unrecognized request format: not UTF-8 text, from byte 15 on"),
        (b'{"instances":["\\udc00"]}', "Unrecognized request format: "),
        (b'{"instances":' + b"[" * 5000, "Unrecognized request format: "),
        (b"[1]", "Expected a JSON object, got a list"),
        (b"1", "Expected a JSON object, got a number"),
        (b"true", "Expected a JSON object, got a boolean"),
        (b"{}", 'Expected "instances" in the request'),
        (b'{"data":1}', 'Expected "instances" in the request'),
        (b'{"instances":null}', 'Expected "instances" to be a list'),
        (b'{"instances":{"a":[1]}}', 'Expected "instances" to be a list'),
        (b'{"instances":[],"parameters":[]}', "parameters: expected an object, got a list"),
        (b'{"inputs":{"a":[1]}}', "inputs: expected a list of tensors, got an object"),
        (b'{"inputs":[[1]]}', "inputs[0]: expected a tensor, got a list"),
        (b'{"inputs":[{"name":"x","data":[1]}]}', 'inputs[0] "x".shape: missing'),
    ],
)
@pytest.mark.parametrize("content_type", [JSON, "", "application/x-www-form-urlencoded"])
def test_hostile_json(sent, text, content_type):
    with pytest.raises(InvalidInput) as caught:
        v1.decode(sent, content_type)
    assert caught.value.message.startswith(text)


def test_of_duplicate_keys_the_last_counts():
    assert v1.decode(b'{"instances":1,"instances":[2]}', JSON).instances == [2]


@pytest.mark.parametrize(
    ("content_type", "error"),
    [
        ("multipart/form-data; boundary=x", UnsupportedContent),
        (f"{JSON}; charset=base64", UnsupportedContent),
        (f"{JSON}; charset=klingon", UnsupportedContent),
        (f"{JSON}; charset=latin-1", InvalidInput),
        ("text/plain; charset=\0", UnsupportedContent),
        ("text/plain; charset=ascii", InvalidInput),
    ],
)
def test_content_that_cannot_be_read(content_type, error):
    with pytest.raises(error):
        v1.decode(b"\xff", content_type)


# --- responses ------------------------------------------------------------------------------------


def test_answers():
    assert v1.encode([2, [0.5], {"a": "b"}, None]) == b'{"predictions":[2,[0.5],{"a":"b"},null]}'
    assert v1.encode([[0.1]], Verb.EXPLAIN) == b'{"explanations":[[0.1]]}'
    assert v1.encode(()) == b'{"predictions":[]}'


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.float32(0.1), 0.1),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array(3.5), 3.5),
        (np.arange(4).reshape(2, 2).T, [[0, 2], [1, 3]]),
        (np.array(["a"]), ["a"]),
        (np.array([1, 2], ">i2"), [1, 2]),
        ({"p": [np.array(1.5, ">f4")]}, {"p": [1.5]}),
        (float("nan"), None),
        (np.array([np.inf, 1]), [None, 1.0]),
        (torch.tensor([1.5, float("nan")]), [1.5, None]),
        (torch.tensor(2), 2),
        (torch.tensor([[0.1], [0.2]]), [[0.1], [0.2]]),
        (torch.tensor(0.1), 0.1),
        (torch.ones(2, dtype=torch.bfloat16), [1.0, 1.0]),
        (torch.ones(2, requires_grad=True), [1.0, 1.0]),
        ({"p": [torch.tensor(1.0)]}, {"p": [1.0]}),
        ({1: "a", None: "b"}, {"1": "a", "null": "b"}),
        ({1: np.float32(0.1)}, {"1": 0.1}),
        (b"text", "text"),
        (bytearray(b"\xff\xfe"), base64.b64encode(b"\xff\xfe").decode()),
        ((1, 2), [1, 2]),
        ({7}, [7]),
        (2**80, 2**80),
        (np.array([1], ">i2"), [1]),
        ([2**80, float("nan")], [2**80, None]),
        ("\ud800", "\ud800"),
    ],
)
def test_results_in_json(result, expected):
    assert json.loads(v1.encode([0, result]))["predictions"] == [0, expected]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (object(), "object has no JSON form"),
        (1j, "complex has no JSON form"),
        (np.array([1j]), "complex has no JSON form"),
        ({(1, 2): 3}, "keys must be str, int, float, bool or None, not tuple"),
        ({np.int64(1): 2}, "keys must be str, int, float, bool or None, not numpy.int64"),
        (lambda: 1, "function has no JSON form"),
    ],
)
def test_a_result_without_a_json_form_is_named(result, why):
    with pytest.raises(HandlerError, match=rf"^explanations\[1\]: {why}$"):
        v1.encode([0, result], Verb.EXPLAIN)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_that_torch_itself_cannot_turn_into_lists():
    ragged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(HandlerError, match=r"^predictions\[0\]: "):
        v1.encode([ragged])


def test_a_result_that_contains_itself():
    loop: list = []
    loop.append(loop)
    with pytest.raises(HandlerError):
        v1.encode([loop])


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(st.lists(JSON_VALUES))
def test_instances_come_back_as_predictions(instances):
    sent = orjson.dumps({"instances": instances})
    answer = orjson.loads(v1.encode(v1.decode(sent, JSON).instances))
    assert answer == {"predictions": instances}
