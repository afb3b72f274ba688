import re
from typing import Any

import pytest

from kserve_torch.settings.kinds import Malformed
from kserve_torch.settings.models import LOAD_MODELS, MODELS, SNAPSHOT, StartupModel

VERSION = (
    '{"defaultVersion": true, "marName": "m.mar", "minWorkers": 1, "maxWorkers": 5, '
    '"batchSize": 2, "maxBatchDelay": 5000, "responseTimeout": 120}'
)


def snapshot(version: str = VERSION) -> str:
    return f'{{"name": "startup.cfg", "modelCount": 1, "models": {{"m": {{"1.0": {version}}}}}}}'


def test_a_snapshot_says_what_to_load_and_its_limits() -> None:
    (entry,) = SNAPSHOT.read(snapshot())
    assert entry.model == StartupModel(name="m", file="m.mar", version="1.0", is_default=True)
    assert dict(entry.limits) == {
        "min_workers": 1,
        "max_workers": 5,
        "batch_size": 2,
        "max_batch_delay": 5.0,
        "response_timeout": 120.0,
    }


def test_models_need_no_file_name_and_no_numbers() -> None:
    entries = MODELS.read('{"a": {"1.0": {}, "2.0": {"marName": "second.mar"}}}')
    assert [(entry.model.version, entry.model.file) for entry in entries] == [
        ("1.0", "a.mar"),
        ("2.0", "second.mar"),
    ]
    assert all(not entry.limits for entry in entries)


def test_a_snapshot_needs_no_more() -> None:
    (entry,) = SNAPSHOT.read(snapshot("{}"))
    assert entry.model == StartupModel(name="m", file="m.mar", version="1.0")
    assert not entry.limits


def test_numbers_of_zero_or_less_fall_back() -> None:
    limits = '"minWorkers": 0, "batchSize": -1, "maxBatchDelay": -0.5, "jobQueueSize": 7'
    (entry,) = MODELS.read(f'{{"m": {{"1": {{{limits}}}}}}}')
    assert dict(entry.limits) == {"queue_size": 7}


def test_a_snapshots_delay_of_zero_is_no_waiting() -> None:
    text = snapshot(VERSION.replace('"maxBatchDelay": 5000', '"maxBatchDelay": 0'))
    (entry,) = SNAPSHOT.read(text)
    assert entry.limits["max_batch_delay"] == 0
    (entry,) = SNAPSHOT.read(text.replace('"maxBatchDelay": 0', '"maxBatchDelay": -1'))
    assert "max_batch_delay" not in entry.limits
    (entry,) = SNAPSHOT.read(text.replace('"batchSize": 2', '"batchSize": 0'))
    assert "batch_size" not in entry.limits
    (entry,) = MODELS.read('{"m": {"1": {"maxBatchDelay": 0}}}')
    assert "max_batch_delay" not in entry.limits


def test_values_in_quotes_are_what_they_say() -> None:
    quoted = re.sub(r": (true|\d+)", r': "\1"', VERSION)
    assert quoted.count('"') == VERSION.count('"') + 12
    assert SNAPSHOT.read(snapshot(quoted)) == SNAPSHOT.read(snapshot())
    (entry,) = MODELS.read('{"m": {"1": {"defaultVersion": "True", "deviceType": "cpu"}}}')
    assert (entry.model.is_default, dict(entry.limits)) == (True, {"device_type": "cpu"})


def test_false_is_a_value() -> None:
    (entry,) = MODELS.read('{"m": {"1": {"v2_flatten": false}}}')
    assert dict(entry.limits) == {"v2_flatten": False}


def test_other_quotes_or_none_as_torchserve_reads_them() -> None:
    for text in (snapshot().replace('"', "'"), snapshot().replace('"', "")):
        assert SNAPSHOT.read(text) == SNAPSHOT.read(snapshot())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("{'models': {'m': {'1.0': {'batchSize': 1 'maxWorkers': 2}}}}", "not JSON"),
        ("models: {m: {1.0: {}}}", "not JSON"),
        ("m.mar", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("{'a':" * 2_000, "not JSON"),
        ("[]", "the whole is not an object"),
        ("{}", "models is not an object"),
        ('{"models": []}', "models is not an object"),
        ('{"models": {"m": 1}}', "m is not an object"),
        ('{"models": {"m": {"1.0": []}}}', "m.1.0 is not an object"),
        (snapshot(VERSION.replace('"m.mar"', "3")), "m.1.0.marName: 3 is not a file name"),
        (snapshot(VERSION.replace('"m.mar"', '""')), "m.1.0.marName: '' is not a file name"),
        (snapshot(VERSION.replace("true", "1")), "m.1.0.defaultVersion: 1 is not true or false"),
        (
            snapshot(VERSION.replace('"batchSize": 2', '"batchSize": "two"')),
            "m.1.0.batchSize: 'two' is not an integer >= 1",
        ),
        (
            snapshot(VERSION.replace('"maxWorkers": 5', '"maxWorkers": 5.5')),
            "m.1.0.maxWorkers: 5.5 is not an integer >= 0",
        ),
        (
            snapshot(VERSION.replace('"minWorkers": 1', '"minWorkers": 100000')),
            "m.1.0.minWorkers: 100000 is not an integer from 1 to 256",
        ),
        (
            snapshot(VERSION.replace("5000", "9" * 400)),
            f"m.1.0.maxBatchDelay: {'9' * 400} is not a number >= 0",
        ),
        (
            snapshot(VERSION.replace("5000", f'"{"[" * 100_000}"')),
            "m.1.0.maxBatchDelay: '[[[",
        ),
    ],
)
def test_a_wrong_snapshot_says_where(text: str, reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        SNAPSHOT.read(text)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("all", "all"),
        ("ALL", "all"),
        ("none", "none"),
        ("a.mar", (StartupModel(name=None, file="a.mar"),)),
        ("a.mar,a.mar", (StartupModel(name=None, file="a.mar"),)),
        (
            "x=a.mar, b.mar,",
            (StartupModel(name="x", file="a.mar"), StartupModel(name=None, file="b.mar")),
        ),
        (
            "https://host/a.mar?v=1",
            (StartupModel(name=None, file="https://host/a.mar?v=1"),),
        ),
        (
            "x=https://host/a.mar?v=1",
            (StartupModel(name="x", file="https://host/a.mar?v=1"),),
        ),
    ],
)
def test_load_models(text: str, models: Any) -> None:
    assert LOAD_MODELS.read(text) == models


def test_a_name_without_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^$"):
        LOAD_MODELS.read("a.mar,x=")
