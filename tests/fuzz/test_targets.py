"""Random and mutated bytes for everything that reads bytes: only errors of ours come out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .seeds import SEEDS
from .targets import TARGETS

SOME = settings(max_examples=150, derandomize=True)


@st.composite
def mutated(draw: st.DrawFn, seed: bytes) -> bytes:
    """A seed with some bytes changed, cut out, doubled or put in."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(len(data), at + 20)))
        new = st.one_of(st.binary(max_size=8), st.just(bytes(data[at:until]) * 2))
        data[at:until] = draw(new)
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_good(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
@SOME
def test_mutations(name: str, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(SEEDS[name]))
    TARGETS[name](data.draw(mutated(seed)))


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=200))
@SOME
def test_anything(name: str, data: bytes) -> None:
    TARGETS[name](data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b"]) | VALUES,
        "shape": st.lists(st.integers(-2, 5), max_size=4) | VALUES,
        "datatype": st.sampled_from(["FP32", "INT64", "UINT8", "BOOL", "BYTES", "BF16"]) | VALUES,
        "data": st.lists(st.integers(-300, 300) | st.floats() | st.text(max_size=3)) | VALUES,
        "parameters": VALUES,
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "instances": VALUES,
        "inputs": st.lists(TENSORS, max_size=3) | VALUES,
        "outputs": VALUES,
        "parameters": VALUES,
        "id": VALUES,
        "specversion": VALUES,
        "data": VALUES,
    },
)


@given(body=BODIES)
@SOME
def test_documents(body: dict[str, object]) -> None:
    text = json.dumps(body, ensure_ascii=True).encode()
    for name in ("read_v1", "read_v2"):
        TARGETS[name](text)
