from __future__ import annotations

import orjson
import pytest

from kserve_torch.codec import native
from kserve_torch.codec.envelope import open_envelope
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.messages import Reply, Request, RowReply, Verb

X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
Y = {"name": "y", "shape": [1], "datatype": "BYTES", "data": ["b"]}


def opened(name, body, content_type="application/json"):
    return open_envelope(name, native.decode(body, content_type).row)


def sealed(envelope, *results, verb=Verb.PREDICT):
    request = Request(id="7", model="m", rows=envelope.rows, verb=verb)
    replies = [
        result if isinstance(result, RowReply) else RowReply(result=result) for result in results
    ]
    return envelope.seal(request, Reply(model="m", version="2.0", rows=replies))


def test_no_envelope():
    envelope = opened(None, b'{"instances":[1]}')
    assert envelope.rows == [{"body": {"instances": [1]}}]
    reply = RowReply(result="r", status=201)
    assert sealed(envelope, reply) is reply


@pytest.mark.parametrize(("name", "text"), [(None, b'{\n  "a": 1\n}'), ("body", b'{\n  "a": 1\n}')])
def test_the_result_is_the_whole_answer(name, text):
    """It may be written at once, on the worker's thread."""
    snapshot = opened(name, b"{}").snapshot
    assert native.encode(RowReply(result=snapshot({"a": 1})), bytes)[0] == text


@pytest.mark.parametrize("name", ["json", "kserve", "kservev2"])
def test_the_result_is_a_part_of_the_answer(name):
    row = {"data": b'{"instances":[1],"inputs":[%b]}' % orjson.dumps(X)}
    assert open_envelope(name, row).snapshot is None


def test_body():
    assert opened("body", b"\xff", "image/png").rows == [bytearray(b"\xff")]
    row = {"data": "d", "body": "b"}
    envelope = open_envelope("body", row)
    assert envelope.rows == ["d"]
    assert sealed(envelope, {"a": 1}).result == {"a": 1}


@pytest.mark.parametrize("content_type", ["application/json", "", "text/plain"])
@pytest.mark.parametrize("name", ["json", "kserve"])
def test_instances(name, content_type):
    envelope = opened(name, b'{"instances":[1,{"data":2}]}', content_type)
    assert envelope.rows == [1, {"data": 2}]
    assert envelope.element.format(1) == "instances[1]"
    answer = sealed(envelope, 3, {"p": 0.5})
    assert answer.result == b'{"predictions":[3,{"p":0.5}]}'
    assert answer.content_type == "application/json"


@pytest.mark.parametrize("content_type", ["image/png", "application/json", ""])
@pytest.mark.parametrize("name", ["json", "kserve", "kservev2"])
def test_what_is_no_json_is_refused_by_the_envelope_s_name(name, content_type):
    words = f"not UTF-8 text, from byte 0 on; service_envelope={name} is set, so a body must be"
    with pytest.raises(InvalidInput, match=words):
        opened(name, b"\x89PNG", content_type)


def test_no_instances_need_no_handler():
    envelope = opened("kserve", b'{"instances":[]}')
    assert envelope.rows == []
    assert sealed(envelope).result == b'{"predictions":[]}'


def test_explanations():
    body = b'{"instances":[1]}'
    assert sealed(opened("kserve", body), 2, verb=Verb.EXPLAIN).result == b'{"explanations":[2]}'
    assert sealed(opened("json", body), 2, verb=Verb.EXPLAIN).result == b'{"predictions":[2]}'


def test_json_decodes_base64():
    body = b'{"instances":[{"b64":"YQ=="},{"i":{"b64":"YQ=="},"k":{"b64":"","x":1}},"t"]}'
    assert opened("json", body).rows == [b"a", {"i": b"a", "k": {"b64": "", "x": 1}}, "t"]


def test_base64_may_be_broken_into_lines():
    body = rb'{"instances":[{"b64":"YW\nJj\r\n"},{"b64":""},{"b64":"\tYQ =="}]}'
    assert opened("json", body).rows == [b"abc", b"", b"a"]


@pytest.mark.parametrize("text", ["!!!!", "YQ", "YQ==YQ==", "YQ=!=", "a-_b", "Y*Q=="])
def test_text_that_is_not_base64_is_named(text):
    body = b'{"instances":["a",{"data":{"b64":"%s"}}]}' % text.encode()
    with pytest.raises(InvalidInput) as caught:
        opened("json", body)
    assert caught.value.message == "instances[1].data.b64: not valid base64"


@pytest.mark.parametrize(
    "asked", [{}, {"parameters": {"binary_data_output": True}}, {"outputs": [{"name": "y"}]}]
)
def test_v2(asked):
    """All outputs as JSON, whatever the request asks for, as TorchServe answers."""
    envelope = opened("kservev2", orjson.dumps({"id": "1", "inputs": [X, Y], **asked}))
    assert [tensor.name for tensor in envelope.rows] == ["x", "y"]
    assert envelope.element.format(1) == "inputs[1]"
    answer = orjson.loads(sealed(envelope, [[5, 6]], {"c": 1}).result)
    assert answer == {
        "id": "1",
        "model_name": "m",
        "model_version": "2.0",
        "outputs": [
            {"name": "x", "datatype": "INT64", "shape": [1, 2], "data": [5, 6]},
            {"name": "y", "datatype": "BYTES", "shape": [1], "data": ['{"c":1}']},
        ],
    }


def test_v2_with_an_empty_id_keeps_it():
    envelope = opened("kservev2", orjson.dumps({"id": "", "inputs": [X]}))
    assert orjson.loads(sealed(envelope, 1).result)["id"] == ""


def test_v2_without_an_id_gets_the_requests():
    answer = sealed(opened("kservev2", orjson.dumps({"inputs": [Y]})), 1)
    assert orjson.loads(answer.result)["id"] == "7"


def test_rows_that_say_something_about_the_response():
    envelope = opened("kserve", b'{"instances":[1,2]}')
    rows = [
        RowReply(result=1, content_type="a/b", headers={"h": "1"}),
        RowReply(result="no", status=400, phrase="full", headers={"h": "2"}),
    ]
    answer = sealed(envelope, *rows)
    assert (answer.status, answer.phrase, answer.headers) == (400, "full", {"h": "2"})
    assert sealed(envelope, rows[0], rows[0]).content_type == "a/b"


def test_results_that_cannot_be_sent():
    with pytest.raises(HandlerError):
        sealed(opened("kserve", b'{"instances":[1]}'), object())


@pytest.mark.parametrize("name", ["json", "kserve", "kservev2"])
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", ""),
        (b"\xff", "application/octet-stream"),
        (b"[1]", "application/json"),
        (b"1", "application/json"),
        (b"{}", "application/json"),
        (b'{"data":1}', "application/json"),
        (b'{"instances":1,"inputs":1}', "application/json"),
        (b'{"instances":[{"b64":1}],"inputs":[1]}', "application/json"),
        (b'{"instances":[{"a":{"b64":"x"}}],"inputs":[]}', "application/json"),
        (b'{"instances":[{"b64":"\xc3\xa4"}],"inputs":null}', "application/json"),
        (b"[" * 100_000, "application/json"),
    ],
)
def test_contents_that_do_not_fit(name, body, content_type):
    if name == "kserve" and b"b64" in body:
        body = b'{"instances":null}'
    with pytest.raises(InvalidInput):
        opened(name, body, content_type)


def test_a_status_that_is_no_number_is_not_overlooked():
    envelope = opened("kserve", b'{"instances":[1,2]}')
    answer = sealed(envelope, RowReply(result="a"), RowReply(result="b", status="400"))
    assert answer.status == "400"
