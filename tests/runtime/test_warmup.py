"""The sample that an archive brings to be sent to it first."""

import json
from typing import Any

import pytest

from kserve_torch.errors import (
    LoadFailed,
    OutOfMemory,
)
from kserve_torch.runtime import warmup

from .loaded import BAD_ROW, Load, function, results


@pytest.mark.parametrize(
    ("sample", "rows"),
    [
        ({"instances": [1, {"data": 2}]}, [1, {"data": 2}]),
        ({"data": "x"}, [{"data": "x"}]),
        (
            {"inputs": [{"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]}]},
            [{"name": "a", "shape": [2], "datatype": "INT64", "data": [1, 2]}],
        ),
    ],
)
def test_warm_up(load: Load, sample: Any, rows: list[Any]) -> None:
    text = "seen = []\n" + function("seen.append(list(data))\nreturn [list(seen)] * len(data)")
    for files, model in (
        ({"warmup.json": json.dumps(sample)}, {}),
        ({"c.yaml": json.dumps({"warmup": sample})}, {"configFile": "c.yaml"}),
    ):
        instance = load(text, files, **model)
        instance.warm_up()
        assert results(instance, 0) == [[rows, [0]]]


def test_each_warm_up_has_a_sample_of_its_own(load: Load) -> None:
    sample = {"warmup": {"instances": [{"deep": [1]}]}}
    text = function("return [row['deep'].pop() for row in data]")
    instance = load(text, {"c.yaml": json.dumps(sample)}, configFile="c.yaml")
    instance.warm_up()
    instance.warm_up()


@pytest.mark.parametrize(("batching", "known"), [("true", "warmup"), ("false", None)])
def test_a_sample_is_of_a_sequence_if_the_model_wants_them(
    load: Load, batching: str, known: str | None
) -> None:
    text = function(f"assert context.get_sequence_id(0) == {known!r}\nreturn data")
    yaml = f"sequenceBatching: {batching}\nwarmup: 1"
    load(text, {"c.yaml": yaml}, configFile="c.yaml").warm_up()


def test_a_compiled_model_may_refuse_two_samples_in_one_batch(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warmup, "compiles", lambda: True)
    text = function("assert len(data) == 1, 'one at a time'\nreturn data")
    instance = load(text, {"warmup.json": '{"data": 1}'})
    instance.context.system_properties["batch_size"] = 2
    instance.warm_up()
    said = "warm-up: two samples in one batch: AssertionError: one at a time"
    assert caplog.messages == [said]


@pytest.mark.parametrize(
    ("mode", "shape", "answered"),
    [("tensor", [2, 3], [2]), ("batch", [-1, 3], [-1, 1])],
)
def test_warm_up_shows_the_signature(
    load: Load, mode: str, shape: list[int], answered: list[int]
) -> None:
    sample = {"name": "a", "shape": [2, 3], "datatype": "INT64", "data": [1, 2, 3, 4, 5, 6]}
    body = "return [row['shape'] for row in data]"
    files = {"warmup.json": json.dumps({"inputs": [sample]})}
    instance = load(function(body), files, v2_rows=mode)
    assert instance.signature == {}
    instance.warm_up()
    assert instance.signature["inputs"] == [{"name": "a", "datatype": "INT64", "shape": shape}]
    expected = [{"name": "a", "datatype": "INT64", "shape": answered}]
    assert instance.signature["outputs"] == expected


def test_without_a_sample_there_is_no_warm_up(load: Load) -> None:
    load(function("raise ValueError")).warm_up()


@pytest.mark.parametrize(
    ("body", "sample", "reason"),
    [
        ("raise ValueError('cold')", "{}", "warm-up sample: ValueError: cold"),
        (BAD_ROW, '{"instances": ["bad"]}', "warm-up sample: instances[0].data: not valid base64"),
        ("return data", "{", "warmup.json: cannot be read as JSON"),
        ("return data", '{"inputs": [{}]}', "warm-up sample: inputs[0].name: expected a string"),
        (
            "return data",
            '{"inputs": [{"name": "a", "shape": [1], "datatype": "X", "data": []}]}',
            "warm-up sample: inputs[0] \"a\".datatype: 'X' is not one of",
        ),
    ],
)
def test_failing_warm_ups(load: Load, body: str, sample: str, reason: str) -> None:
    instance = load(function(body), {"warmup.json": sample})
    with pytest.raises(LoadFailed) as caught:
        instance.warm_up()
    assert caught.value.message.startswith(reason)


def test_a_warm_up_without_memory(load: Load) -> None:
    with pytest.raises(OutOfMemory):
        load(function("raise MemoryError"), {"warmup.json": "{}"}).warm_up()
