from __future__ import annotations

import io
import json
from typing import NamedTuple
from urllib.parse import parse_qsl

import httpx
import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import native
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.handler.tensors import save_tensor
from kserve_torch.messages import RowReply

FORM = "application/x-www-form-urlencoded"


class Point(NamedTuple):
    x: int
    y: float


class Ratio(float):
    pass


def itself():
    """A list that is its own element."""
    result = []
    result.append(result)
    return result


def row(body, content_type="", **options):
    return native.decode(body, content_type, **options).row


def multipart(**parts):
    """Body and content type as httpx writes them."""
    request = httpx.Request("POST", "http://x", files=parts)
    return request.read(), request.headers["content-type"]


def encode(result, **members):
    return native.encode(RowReply(result=result, **members), save_tensor)


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"\x89PNG", "image/png", bytearray(b"\x89PNG")),
        (b"abc", "", bytearray(b"abc")),
        (b"", "", bytearray()),
        (b'{"a":1}', "application/json", {"a": 1}),
        (b'{"a":1}', "application/json; charset=utf-8", {"a": 1}),
        (b"[1", "application/json", bytearray(b"[1")),
        (b"[" * 100_000, "application/json", bytearray(b"[" * 100_000)),
        (b"[Infinity]", "application/json", [float("inf")]),
        (b'{"id":123456789012345678901234}', "application/json", {"id": 123456789012345678901234}),
        (b"[-9223372036854775809]", "application/json", [-(2**63) - 1]),
        (b"[18446744073709551616, 1.5]", "application/json", [2**64, 1.5]),
        (b'["1234567890123456789"]', "application/json", ["1234567890123456789"]),
        (b"[" + b"9" * 4090, "application/json", bytearray(b"[" + b"9" * 4090)),
        (b"9" * 4096, "application/json", int("9" * 4096)),
        (b'{"a":1}', "application/ld+json", bytearray(b'{"a":1}')),
        ("ä".encode(), "text/plain", "ä"),
        ("ä".encode(), "text/csv; charset=x", "ä"),
        (b"\xff", "text/plain", bytearray(b"\xff")),
        (b"{}", "application/octet-stream", bytearray(b"{}")),
        (b"--x", "text/plain; boundary=x", "--x"),
    ],
)
def test_a_plain_body(body, content_type, expected):
    decoded = native.decode(body, content_type)
    assert decoded.row == {"body": expected}
    assert type(decoded.row["body"]) is type(expected)
    assert decoded.content_types == {"body": content_type.partition(";")[0]}


def test_nothing_is_decoded_if_not_wanted():
    for content_type in ("application/json", "text/plain"):
        assert row(b"{}", content_type, decode_input=False) == {"body": bytearray(b"{}")}


def test_multipart():
    body, content_type = multipart(
        data=("x.png", b"\x89\r\n--x\r\n", "image/png"),
        config=("c.json", b'{"k":1}', "application/json; charset=utf-8"),
        note=(None, b"hi"),
        text=("t.txt", "ä".encode(), "text/plain"),
        field=(None, b'{"k":1}', "application/json"),
    )
    decoded = native.decode(body, content_type)
    assert decoded.row == {
        "data": bytearray(b"\x89\r\n--x\r\n"),
        "config": {"k": 1},
        "note": bytearray(b"hi"),
        "text": "ä",
        "field": bytearray(b'{"k":1}'),
    }
    assert decoded.content_types == {
        "data": "image/png",
        "config": "application/json",
        "note": "",
        "text": "text/plain",
        "field": "",
    }
    assert row(body, content_type, decode_input=False)["config"] == bytearray(b'{"k":1}')


def test_a_file_without_a_type_is_binary():
    body = b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n1\r\n--x--\r\n'
    decoded = native.decode(body, "multipart/form-data; boundary=x")
    assert decoded.row == {"a": bytearray(b"1")}
    assert decoded.content_types == {"a": "application/octet-stream"}


def test_of_duplicate_fields_the_last_wins():
    assert row(b"a=1&b=2&a=3", FORM) == {"a": bytearray(b"3"), "b": bytearray(b"2")}
    body = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 2
    body += b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n2\r\n--x--\r\n'
    assert row(body, 'multipart/form-data; boundary="x"') == {"a": bytearray(b"2")}


def test_urlencoded_values_are_bytes():
    expected = {"ä": bytearray("ö".encode()), "e": bytearray(), "n": bytearray(b"\xff a")}
    assert row(b"%C3%A4=%C3%B6&e=&n=%ff+a", FORM) == expected
    assert row("ä=ö".encode(), FORM) == {"ä": bytearray("ö".encode())}


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_line_end_of_a_form_that_comes_from_a_file(end):
    assert row(b"a=1&b=x\ny%0A" + end, FORM) == {"a": bytearray(b"1"), "b": bytearray(b"x\ny\n")}
    assert row(end, FORM) == {}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a": "b=1&c=2"}', {"body": {"a": "b=1&c=2"}}),
        (b"\r\n [1.5]", {"body": [1.5]}),
        (b'{"a": 1', {'{"a": 1': bytearray()}),
        (b"[x]=1", {"[x]": bytearray(b"1")}),
        (b"1", {"1": bytearray()}),
        (b"", {}),
    ],
)
def test_json_that_curl_calls_a_form(body, expected):
    decoded = native.decode(body, FORM)
    assert decoded.row == expected
    assert set(decoded.content_types.values()) <= {"", "application/json"}
    if "body" in expected:
        assert row(body, FORM, decode_input=False) == {"body": bytearray(body)}


def test_an_image_that_curl_calls_a_form():
    image = b"\x89PNG\r\n\x1a\n\0\0&=%41"
    assert row(image, FORM) == {"body": bytearray(image)}
    assert row(b"a=%00b", FORM) == {"a": bytearray(b"\0b")}


@given(st.text("%4aG+&= é").map(str.encode))
def test_urlencoded_bodies_are_read_as_the_standard_library_does(body):
    pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
    expected = {}
    for name, value in pairs:
        name = name.encode("latin-1").decode("utf-8", "replace")
        expected[name] = bytearray(value.encode("latin-1"))
    assert row(body, FORM) == expected


def test_query_parameters_lose_against_the_body():
    decoded = native.decode(b"b=2", FORM, {"a": "ä", "b": "1"})
    assert decoded.row == {"a": bytearray("ä".encode()), "b": bytearray(b"2")}
    assert decoded.content_types == {"a": "", "b": ""}


def test_what_is_called_multipart_and_has_no_parts():
    image = b"\x89PNG\r\n\x1a\n--"
    decoded = native.decode(image, "multipart/form-data")
    assert decoded.row == {"body": bytearray(image)}
    assert decoded.content_types == {"body": "multipart/form-data"}


PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'


@pytest.mark.parametrize(
    ("body", "boundary"),
    [
        (b"", "; boundary=x"),
        (PART, "; boundary=x"),
        (PART + b"--x--\r\n", "; boundary=y"),
        (PART + b"--x--\r\n", "; boundary=" + "y" * 1000),
        (b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n", "; boundary=x"),
        (b"--x\r\n\r\n1\r\n--x--\r\n", "; boundary=x"),
        (b"--x\r\nbad header\r\n\r\n1\r\n--x--\r\n", "; boundary=x"),
        (b"--x\r\n" + b"a: b\r\n" * 5000 + b"\r\n1\r\n--x--\r\n", "; boundary=x"),
        (PART * 2000 + b"--x--\r\n", "; boundary=x"),
    ],
)
def test_damaged_multipart(body, boundary):
    with pytest.raises(InvalidInput):
        native.decode(body, f"multipart/form-data{boundary}")


@pytest.mark.parametrize(
    ("boundary", "text"),
    [
        ("", "Content-Type: multipart without a boundary"),
        ("; boundary=y", "multipart: Expected boundary character"),
    ],
)
def test_what_is_wrong_with_a_multipart_body_is_said(boundary, text):
    with pytest.raises(InvalidInput, match=text):
        native.decode(PART + b"--x--\r\n", f"multipart/form-data{boundary}")


def test_a_form_of_too_many_fields():
    with pytest.raises(InvalidInput, match="more than 1000 fields"):
        row(b"a=1&" * 2000, FORM)


@given(st.dictionaries(st.text("abcäß ", min_size=1), st.binary(max_size=50), min_size=1))
def test_files_survive_multipart(files):
    parts = {name: ("f", data, "application/octet-stream") for name, data in files.items()}
    assert row(*multipart(**parts)) == files


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "body", "content_type"),
    [
        (b"\xff", b"\xff", "application/octet-stream"),
        (bytearray(b"x"), b"x", "application/octet-stream"),
        (memoryview(b"x"), b"x", "application/octet-stream"),
        ("ä", "ä".encode(), "text/plain; charset=utf-8"),
        ({"a": [1, 2.5]}, b'{\n  "a": [\n    1,\n    2.5\n  ]\n}', "application/json"),
        ([], b"[]", "application/json"),
        (None, b"null", "application/json"),
        ({1: float("nan")}, b'{\n  "1": null\n}', "application/json"),
        (np.array([1]), b"[\n  1\n]", "application/json"),
        (Point(1, 2), b"[\n  1,\n  2\n]", "application/json"),
        (
            {"at": Point(1, Ratio(0.5))},
            b'{\n  "at": [\n    1,\n    0.5\n  ]\n}',
            "application/json",
        ),
        (2**80, b"1208925819614629174706176", "application/json"),
        ([2**64, float("inf")], b"[\n  18446744073709551616,\n  null\n]", "application/json"),
        ({"a": "\ud800"}, b'{\n  "a": "\\ud800"\n}', "application/json"),
    ],
)
def test_results(result, body, content_type):
    encoded, told = encode(result)
    assert (encoded, told, type(encoded)) == (body, content_type, bytes)


def test_results_may_be_nested_deeply():
    result = 1
    for _ in range(300):
        result = [result]
    assert json.loads(encode(result)[0]) == result


def test_a_tensor_is_saved():
    body, content_type = encode(torch.arange(3))
    assert content_type == "application/octet-stream"
    assert torch.load(io.BytesIO(body)).tolist() == [0, 1, 2]


def test_the_handlers_content_type_wins():
    assert encode(b"x", content_type="image/png") == (b"x", "image/png")


@pytest.mark.parametrize(
    "result", [object(), {"a": object()}, "\ud800", [2**80, object()], itself()]
)
def test_results_that_cannot_be_sent(result):
    with pytest.raises(HandlerError, match=r"^Unsupported model output data type"):
        encode(result)


@given(st.recursive(st.integers(-9, 9) | st.text(), st.lists, max_leaves=5))
def test_json_bodies_come_back(value):
    sent = orjson.dumps(value)
    body, _ = encode({"v": row(sent, "application/json")["body"]})
    assert orjson.loads(body) == {"v": value}
