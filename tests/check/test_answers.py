import json
from typing import Any

import pytest

from kserve_torch.check.answers import difference


def told(got: Any, wanted: Any) -> str:
    return difference(json.dumps(got).encode(), json.dumps(wanted).encode())


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        ({"predictions": [2]}, {"predictions": [2.0]}),
        ({"predictions": [1, 2], "id": "a"}, {"id": "b", "predictions": [1, 2]}),
        ([0.0, -1000.0], [0.9, -1000.5]),
        (1000.0, 1000.5),
        (1e-9, 0.0),
        ({"tabby": 0.3, "tiger": 1e-12}, {"tabby": 0.30002, "tiger": 2e-12}),
        ([[float("nan"), None]], [[None, float("nan")]]),
        (
            {"id": "a", "outputs": [{"name": "y", "shape": [1, 2], "data": [[1, 2]]}]},
            {"model_name": "m", "outputs": [{"name": "x", "shape": [2], "data": [1, 2]}]},
        ),
        ("a", "a"),
        ([], []),
    ],
)
def test_what_says_the_same(got: Any, wanted: Any) -> None:
    assert told(got, wanted) == ""


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        ({"predictions": [7]}, {"predictions": [2]}, "predictions[0]: 7, not 2"),
        ({"a": {"b": [0, {"c": 1}]}}, {"a": {"b": [0, {"c": True}]}}, "a.b[1].c: 1, not true"),
        ({"a": 1.0}, {"a": 1.01}, "a: 1.0, not 1.01"),
        ([0.0, 1000.0], [2.0, 1000.0], "[0]: 0.0, not 2.0"),
        ([1], [1, 2], "answer: [1], not [1, 2]"),
        ([1], {"a": 1}, 'answer: [1], not {"a": 1}'),
        ({"a": 1}, [1], 'answer: {"a": 1}, not [1]'),
        ({"error": "boom"}, {"predictions": []}, 'answer: {"error": "boom"}, not'),
        ({"outputs": [{"data": [1]}]}, {"outputs": [{"data": [2]}]}, "outputs[0][0]: 1, not 2"),
        ({"outputs": []}, {"outputs": [{}]}, "outputs: [], not [{}]"),
        ({"outputs": ["x"]}, {"outputs": [1]}, 'outputs[0]: "x", not 1'),
        (list("a" * 99), 1, '"a",…, not 1'),
    ],
)
def test_the_first_difference_is_named(got: Any, wanted: Any, words: str) -> None:
    assert words in told(got, wanted)


def test_what_is_no_json_is_compared_byte_by_byte() -> None:
    assert difference(b"\x89PNG", b"\x89PNG") == ""
    assert difference(b"\x89PNG", b"PNG") == "4 bytes that differ from 3"
    assert difference(b"[" * 100_000, b"[1]") == "100000 bytes that differ from 3"
    deep = b"[" * 900 + b"]" * 900  # json reads it
    assert difference(deep, deep) == ""
    huge = b"9" * 400
    assert difference(huge, huge) == ""
    assert difference(huge, b"1.0") == "400 bytes that differ from 3"
