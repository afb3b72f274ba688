from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import v2, v2_reply
from kserve_torch.codec.v2 import RequestedOutput, V2Request
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.messages import Tensor

X = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
BLOB = np.array([1, 2], "<f4").tobytes()
BINARY_X = {
    "name": "x",
    "shape": [2],
    "datatype": "FP32",
    "parameters": {"binary_data_size": 8, "kept": 1},
}


def body(**members):
    return orjson.dumps({"inputs": [X], **members})


def binary(*inputs, blobs=b"", **members):
    head = orjson.dumps({"inputs": list(inputs), **members})
    return head + blobs, len(head)


def tensor(name, array, datatype="FP32"):
    return Tensor(name=name, datatype=datatype, array=np.asarray(array))


@pytest.mark.parametrize("large", [False, True])
def test_an_input_names_the_class_to_explain_as_a_member_or_a_parameter(large):
    numbers = [0.5] * (50_000 if large else 2)
    one = {**X, "shape": [len(numbers)], "data": numbers}
    inputs = [{**one, "target": 3}, {**one, "name": "y", "parameters": {"target": 4}}]
    decoded = v2.decode(body(inputs=inputs)).inputs
    assert [tensor.parameters["target"] for tensor in decoded] == [3, 4]


def request(**members):
    return V2Request(inputs=[], **members)


# --- requests -------------------------------------------------------------------------------------


def test_json_request():
    decoded = v2.decode(
        body(
            id="7",
            parameters={"a": 1, "binary_data_output": True},
            outputs=[{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}],
        )
    )
    assert decoded.id == "7"
    assert decoded.parameters["a"] == 1
    assert decoded.binary_output is True
    assert [(o.name, o.binary) for o in decoded.outputs] == [("y", False), ("z", None)]
    assert decoded.inputs[0].array.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("outputs", [None, []])
def test_null_and_empty_members_count_as_absent(outputs):
    decoded = v2.decode(body(id=None, parameters=None, outputs=outputs))
    assert (decoded.id, dict(decoded.parameters), decoded.outputs) == (None, {}, None)


def test_binary_request():
    second = {
        "name": "s",
        "shape": [1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": 5},
    }
    inputs = (BINARY_X, {**X, "name": "j"}, second)
    sent, length = binary(*inputs, blobs=BLOB + b"\1\0\0\0a")
    decoded = v2.decode(sent, str(length))
    assert [t.array.tolist() for t in decoded.inputs] == [[1.0, 2.0], [1.0, 2.0], [b"a"]]
    assert decoded.inputs[0].parameters == {"kept": 1}


def test_json_request_with_a_header_length():
    sent, length = binary(X)
    assert v2.decode(sent, length).inputs[0].shape == (2,)


def test_empty_binary_tensor():
    sent, length = binary({**BINARY_X, "shape": [0], "parameters": {"binary_data_size": 0}})
    assert v2.decode(sent, length).inputs[0].shape == (0,)


def test_raw_binary_request():
    decoded = v2.decode(b"\x89PNG", 0)
    assert decoded.binary_output is True
    assert decoded.inputs[0].array.tolist() == [b"\x89PNG"]


DECLARED = {"name": "y", "datatype": "FP32", "shape": [-1, 2]}


def test_raw_binary_request_for_a_declared_input():
    (tensor,) = v2.decode(BLOB * 2, "0", [DECLARED]).inputs
    assert (tensor.name, tensor.datatype) == ("y", "FP32")
    assert tensor.array.tolist() == [[1.0, 2.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        (
            [DECLARED, {**DECLARED, "name": "z"}],
            "0 makes the body one tensor, the model has 2 inputs",
        ),
        ([{**DECLARED, "shape": [-1, -1]}], "leaves more than one dimension open"),
        ([{**DECLARED, "shape": [2]}], 'inputs[0] "y".data: 4 elements, shape [2] needs 2'),
    ],
)
def test_raw_binary_requests_that_no_declared_input_takes(declared, error):
    with pytest.raises(InvalidInput) as caught:
        v2.decode(BLOB * 2, 0, declared)
    assert error in caught.value.message


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"", "Unrecognized request format: "),
        (b"{", "Unrecognized request format: "),
        (b'{"inputs":[{"name":"\xff"}]}', "Unrecognized request format: "),
        (b'{"id":"\\ud800"}', "Unrecognized request format: "),
        (b'{"inputs":[NaN]}', "Unrecognized request format: "),
        (b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}", "Unrecognized request format: "),
        (b"[]", "Expected a JSON object, got a list"),
        (b"null", "Expected a JSON object, got null"),
        (b'"x"', "Expected a JSON object, got a string"),
        (b"{}", "inputs: missing"),
        (b'{"inputs":[]}', "inputs: expected at least one tensor"),
        (b'{"inputs":{}}', "inputs: expected a list of tensors, got an object"),
        (b'{"inputs":[1]}', "inputs[0]: expected a tensor, got a number"),
        (b'{"inputs":[{}]}', "inputs[0].name: expected a string, got nothing"),
        (b'{"inputs":[{"name":null}]}', "inputs[0].name: expected a string, got null"),
        (b'{"inputs":[{"name":"x"}]}', 'inputs[0] "x".shape: missing'),
        (b'{"inputs":[{"name":"x","shape":[1]}]}', 'inputs[0] "x".datatype: missing'),
        (
            b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32"}]}',
            'inputs[0] "x".data: missing',
        ),
        (
            b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":null}]}',
            'inputs[0] "x".data: missing',
        ),
        (orjson.dumps({"inputs": [X, X]}), 'inputs[1] "x": duplicate name'),
        (body(id=7), "id: expected a string, got a number"),
        (body(parameters=[]), "parameters: expected an object, got a list"),
        (body(parameters={"binary_data_output": 1}), "parameters.binary_data_output: expected tr"),
        (body(outputs={}), "outputs: expected a list of tensors, got an object"),
        (body(outputs="y"), "outputs: expected a list of tensors, got a string"),
        (body(outputs=[{"name": "y"}] * 2), 'outputs[1] "y": duplicate name'),
        (body(outputs=[{}]), "outputs[0].name: expected a string, got nothing"),
        (
            body(outputs=[{"name": "y", "parameters": {"binary_data": "yes"}}]),
            'outputs[0] "y".parameters.binary_data: expected true or false, got a string',
        ),
        (
            orjson.dumps({"inputs": [{**X, "parameters": 1}]}),
            'inputs[0] "x".parameters: expected an object, got a number',
        ),
        (orjson.dumps({"inputs": [BINARY_X]}), 'inputs[0] "x": binary_data_size is 8, 0 bytes are'),
    ],
)
def test_hostile_json(sent, text):
    with pytest.raises(InvalidInput) as caught:
        v2.decode(sent)
    assert caught.value.message.startswith(text)


@pytest.mark.parametrize(
    ("member", "blobs", "text"),
    [
        ({"binary_data_size": 8}, BLOB[:7], "binary_data_size is 8, 7 bytes are left"),
        ({"binary_data_size": 8}, BLOB + b"\0", "1 bytes of binary data belong to no input"),
        ({"binary_data_size": 4}, BLOB[:4], "1 elements, shape [2] needs 2"),
        ({"binary_data_size": -1}, b"", "-1 is not a number of bytes"),
        ({"binary_data_size": "8"}, BLOB, "'8' is not a number of bytes"),
        ({"binary_data_size": True}, b"\0", "True is not a number of bytes"),
        ({"binary_data_size": 2**64 - 1}, BLOB, "8 bytes are left"),
        ({}, BLOB, '"x".data: missing'),
    ],
)
def test_wrong_binary_sizes(member, blobs, text):
    sent, length = binary({**BINARY_X, "parameters": member}, blobs=blobs)
    with pytest.raises(InvalidInput) as caught:
        v2.decode(sent, length)
    assert text in caught.value.message


def test_data_and_binary_size_exclude_each_other():
    sent, length = binary({**BINARY_X, "data": [1, 2]}, blobs=BLOB)
    with pytest.raises(InvalidInput, match="has both data and binary_data_size"):
        v2.decode(sent, length)


@pytest.mark.parametrize("header", ["-1", "+5", "x", "", "1.0", "9" * 5000, 10_000, "²", "\u0661"])
def test_wrong_header_lengths(header):
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        v2.decode(body(), header)


def test_header_length_that_cuts_the_json():
    words = "Unrecognized request format: .*; .* first 10 bytes .*Inference-Header-Content-Length"
    with pytest.raises(InvalidInput, match=words):
        v2.decode(body(), 10)


def test_header_length_that_takes_binary_data_for_json():
    sent, length = binary(BINARY_X, blobs=b"\xff" * 8)
    with pytest.raises(InvalidInput, match=rf"not UTF-8 text, from byte {length} on; .*-Length"):
        v2.decode(sent, length + 1)


@given(st.data())
def test_any_truncation_is_refused(data):
    sent, length = binary(BINARY_X, {**X, "name": "j"}, id="7", blobs=BLOB)
    cut = data.draw(st.integers(1, len(sent) - 1))
    with pytest.raises(InvalidInput):
        v2.decode(sent[:cut], length)


# --- responses ------------------------------------------------------------------------------------


def test_json_response_has_torchserves_key_order_and_no_nulls():
    sent, length = v2_reply.encode("m", "1.0", "7", [tensor("y", [[1.5, 2.5]])], request())
    assert length is None
    assert sent == (
        b'{"id":"7","model_name":"m","model_version":"1.0","outputs":'
        b'[{"name":"y","datatype":"FP32","data":[1.5,2.5],"shape":[1,2]}]}'
    )
    sent, _ = v2_reply.encode("m", "1.0", "7", [], request(), {"p": 1})
    assert sent == (
        b'{"id":"7","model_name":"m","model_version":"1.0","parameters":{"p":1},"outputs":[]}'
    )


def test_non_finite_numbers_are_null():
    sent, _ = v2_reply.encode("m", "1", "7", [tensor("y", [np.nan, np.inf, 1])], request())
    assert orjson.loads(sent)["outputs"][0]["data"] == [None, None, 1.0]


def test_selection_keeps_the_requested_order():
    wanted = [RequestedOutput(name="b"), RequestedOutput(name="a")]
    outputs = [tensor("a", [1]), tensor("b", [2]), tensor("c", [3])]
    sent, _ = v2_reply.encode("m", "1", "7", outputs, request(outputs=wanted))
    assert [output["name"] for output in orjson.loads(sent)["outputs"]] == ["b", "a"]


def test_unknown_selection():
    wanted = request(outputs=[RequestedOutput(name="z")])
    with pytest.raises(InvalidInput, match='outputs\\[0\\]: no output "z", there is y'):
        v2_reply.encode("m", "1", "7", [tensor("y", [1])], wanted)


@pytest.mark.parametrize(
    ("default", "own", "expected"),
    [
        (False, None, False),
        (True, None, True),
        (True, False, False),
        (False, True, True),
    ],
)
def test_an_output_inherits_the_default_or_overrides_it(default, own, expected):
    wanted = request(binary_output=default, outputs=[RequestedOutput(name="y", binary=own)])
    sent, length = v2_reply.encode("m", "1", "7", [tensor("y", [1, 2])], wanted)
    assert (length is not None) is expected
    output = orjson.loads(sent[:length])["outputs"][0]
    assert ("data" in output) is not expected
    if expected:
        assert output["parameters"] == {"binary_data_size": 8}


def test_binary_response_is_a_binary_request_in_reverse():
    words = np.array(["ä", b"\xff"], object)
    half = np.array([1, 2], "f2")
    outputs = [
        tensor("s", words, "BYTES"),
        tensor("h", half, "FP16"),
        tensor("e", np.zeros((0, 3), "f4")),
        tensor("b", [True, False], "BOOL"),
    ]
    sent, length = v2_reply.encode("m", "1", "7", outputs, request(binary_output=True))
    head = orjson.loads(sent[:length])
    again = v2.from_document({"inputs": head["outputs"]}, sent[length:])
    assert [t.datatype for t in again.inputs] == ["BYTES", "FP16", "FP32", "BOOL"]
    assert again.inputs[0].array.tolist() == ["ä".encode(), b"\xff"]
    assert again.inputs[1].array.tolist() == [1.0, 2.0]
    assert again.inputs[2].shape == (0, 3)
    assert again.inputs[3].array.tolist() == [True, False]


def test_half_floats_are_upcast_in_json():
    outputs = [tensor("h", np.array([0.5], "f2"), "FP16"), tensor("b", [0x3F80], "BF16")]
    sent, _ = v2_reply.encode("m", "1", "7", outputs, request())
    assert [(o["datatype"], o["data"]) for o in orjson.loads(sent)["outputs"]] == [
        ("FP32", [0.5]),
        ("FP32", [1.0]),
    ]


def test_bytes_that_are_no_text_need_binary():
    outputs = [tensor("y", np.array([b"\xff"], object), "BYTES")]
    with pytest.raises(HandlerError, match="request it as binary data"):
        v2_reply.encode("m", "1", "7", outputs, request())


@pytest.mark.parametrize("binary_output", [False, True])
def test_an_output_that_is_no_text_in_any_form_is_named(binary_output):
    outputs = [
        tensor("y", np.array(["a"], object), "BYTES"),
        tensor("z", np.array(["\ud800"], object), "BYTES"),
    ]
    with pytest.raises(HandlerError, match=r'^output "z": .*surrogates not allowed'):
        v2_reply.encode("m", "1", "7", outputs, request(binary_output=binary_output))


def test_parameters_that_are_no_text():
    with pytest.raises(HandlerError, match=r"^parameters: .*surrogates not allowed"):
        v2_reply.encode("m", "1", "7", [tensor("y", [1])], request(), {"p": "\ud800"})


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ({"id": "\ud800"}, "id:"),
        ({"inputs": [{**X, "name": "a\udfff"}]}, "inputs[0].name:"),
        ({"outputs": [{"name": "\ud800"}]}, "outputs[0].name:"),
    ],
)
def test_half_of_a_surrogate_pair_is_no_name(members, where):
    with pytest.raises(InvalidInput) as caught:
        v2.from_document({"inputs": [X], **members})
    assert caught.value.message.startswith(where)


def test_names_beyond_ascii():
    decoded = v2.from_document({"inputs": [{**X, "name": "\U0001f600"}], "id": "é"})
    assert (decoded.id, decoded.inputs[0].name) == ("é", "\U0001f600")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "member",
    [
        {"data": nested(900)},
        {"data": [1, nested(900)]},
        {"datatype": nested(900)},
        {"datatype": "BYTES", "data": [{"a": nested(900)}]},
        {"shape": nested(900)},
        {"parameters": {"binary_data_size": nested(900)}},
    ],
)
def test_what_nests_deeply_is_named_in_brief(member):
    with pytest.raises(InvalidInput) as caught:
        v2.from_document({"inputs": [{**X, **member}]})
    assert len(caught.value.message) < 250


def test_a_verb_that_nests_deeply():
    with pytest.raises(InvalidInput, match=r"parameters\.verb"):
        v2.verb_of(request(parameters={"verb": nested(900)}))
