from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kserve_torch.codec import values

LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=2)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner)
)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(values, "PORTION", 4)


@given(VALUES, st.sampled_from([0, orjson.OPT_INDENT_2]))
def test_values_in_portions_are_written_as_by_orjson(value, option):
    assert values.json_text(value, option) == orjson.dumps(value, option=option)


@pytest.mark.parametrize(
    "value",
    [
        list(range(100)),
        tuple(range(100)),
        [[1, 2]] * 50,
        [{"box": [1, 2], "label": "a"}] * 30,
        [[[1, 2]] * 50] * 2,
        {"label": "a", "mask": [[1, 2]] * 50},
        [{"mask": [1] * 100}],
    ],
)
def test_little_is_written_at_once(value, monkeypatch):
    written = []
    real = orjson.dumps

    def dumps(part, *args, **kwargs):
        written.append(0 if "Fragment" in repr(part) else len(real(part)))
        return real(part, *args, **kwargs)

    monkeypatch.setattr(values.orjson, "dumps", dumps)
    text = values.json_text(value)
    assert max(written) < 40
    assert text == real(value)


def test_a_list_that_holds_itself_has_no_json_form():
    own = [1, 2, 3, 4, 5]
    own[0] = own
    with pytest.raises(TypeError):
        values.json_text(own)
