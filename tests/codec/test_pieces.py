from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import pieces

TEXTS = st.sampled_from(["", "a", 'q"u', "b\\", "x, y", "]", "{[", '"', '":', "é"])
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from([-2.5, 1e9]) | TEXTS
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner))


def outcome(loads, text):
    try:
        return repr(loads(text))  # which shows the order of members, too
    except orjson.JSONDecodeError as error:
        return error


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(pieces, "WORTH", 0)
    monkeypatch.setattr(pieces, "PIECE", 3)


@pytest.fixture
def longest(monkeypatch):
    """The length of the longest text that was parsed at once."""
    lengths = []
    real = orjson.loads

    def loads(text):
        lengths.append(len(text))
        return real(text)

    monkeypatch.setattr(pieces.orjson, "loads", loads)
    return lambda: max(lengths)


@given(VALUES, st.sampled_from([None, 1]))
def test_any_value(value, indent):
    text = json.dumps(value, indent=indent).encode()
    assert outcome(pieces.loads, text) == outcome(orjson.loads, text)


@pytest.mark.parametrize(
    "text",
    [
        b"[1,2,3,4",
        b"[1,2,3,]",
        b"[1,2,3 , ]",
        b"[1,,2,3]",
        b"[1,2,3]]",
        b"[1,2,3}",
        b"[1,2,3],[4]",
        b'{"a":1,"b":2,3}',
        b'[1,2,"a":3]',
        b'["abc,def',
        b'["abc,def\\\\',
        b'["abc,def\\',
        b"1,2,3,4,5,6",
        b"",
    ],
)
def test_what_is_not_json_is_refused_as_by_orjson(text):
    ours, orjsons = outcome(pieces.loads, text), outcome(orjson.loads, text)
    assert type(ours) is type(orjsons) is orjson.JSONDecodeError
    assert str(ours) == str(orjsons)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":[1,2,3,4],"b":[5],"a":[6,7,8,9]}',
        b'{"a":{"c":1,"d":2},"a":{"e":3,"f":4}}',
        b'{"a":{"c":1},"b":{"d":2},"a":{"e":3,"f":4}}',
        b'{"a":1,"b":[2,3],"a":[4,5,6,7]}',
        rb'[1,2,"\u0000",3,4,5,6]',
        rb'{"\u0000":1,"b":2,"c":{"\u0000":3}}',
    ],
)
def test_members_that_are_there_twice_and_the_mark_itself(text):
    assert repr(pieces.loads(text)) == repr(orjson.loads(text))


@pytest.mark.parametrize(
    "value",
    [
        list(range(100)),
        {"instances": [[[0.5] * 10] * 10]},
        {"instances": [{"a": "x, y", "b": [1, 2]}] * 100},
        {f"k{i}": i for i in range(100)},
        {"a": [1] * 100, "b": [2] * 10},
    ],
)
def test_little_is_parsed_at_once(value, longest):
    assert pieces.loads(orjson.dumps(value)) == value
    assert longest() < 60


def test_the_end_of_a_long_string_is_searched_in_portions(monkeypatch):
    found = []
    inside = pieces._IN_STRING

    class Pattern:
        def match(self, *where):
            found.append(inside.match(*where))
            return found[-1]

    monkeypatch.setattr(pieces, "_IN_STRING", Pattern())
    value = ["x, " * 20, '\\"' * 20 + ", " + '"\\' * 20, ["y"]]
    assert pieces.loads(orjson.dumps(value)) == value
    assert max(match.end() - match.start() for match in found) <= 3


def test_a_small_text_is_parsed_at_once(monkeypatch, longest):
    monkeypatch.setattr(pieces, "WORTH", 10)
    assert pieces.loads(b"[1,2,3,4]") == [1, 2, 3, 4]
    assert longest() == 9
