from pathlib import Path
from typing import Any

import pytest

from kserve_torch.archives.archive import open_archive
from kserve_torch.archives.config import checked_config

from ..makers import make_archive
from .opening import FILES, refusal


def test_the_configuration_is_checked(
    tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "batchSize: 4\nparallelLevel: '2'\ntorchrun: tpu\nuseVenv: 1\nhandler: {a: 1}\n"
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    archive = open_archive(source, work)
    assert archive.config == {"batchSize": 4, "handler": {"a": 1}}
    assert archive.yaml["parallelLevel"] == "2"
    assert [record.getMessage() for record in caplog.records] == [
        "model m: c.yaml: parallelLevel: '2' is not an integer >= 0; ignored",
        "model m: c.yaml: torchrun: 'tpu' is not a mapping; ignored",
        "model m: c.yaml: useVenv: 1 is not true or false; ignored",
    ]


def test_a_signature_with_a_datatype_that_there_is_not(
    tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "signature: {inputs: [{name: x, datatype: float32, shape: [1]}]}\n"
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    assert "signature" not in open_archive(source, work).config
    (message,) = caplog.messages
    assert "'float32'" in message
    assert "datatypes are BOOL, UINT8, " in message


def test_a_misspelt_key_of_the_configuration_is_guessed(
    tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "minWorker: 2\nbatch_size: 4\nhandler: {a: 1}\nbatchLimit: 9\n1: 2\nmaxBatchDelay: 5\n"
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    assert open_archive(source, work).config["minWorker"] == 2
    assert caplog.messages == [
        "model m: c.yaml: minWorker is left to the handler; did you mean minWorkers?",
        "model m: c.yaml: batch_size is left to the handler; did you mean batchSize?",
    ]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("minWorkers", 0),
        ("minWorkers", True),
        ("minWorkers", 257),
        ("batchSize", "8"),
        ("batchSize", None),
        ("maxBatchDelay", -1),
        ("maxBatchDelay", True),
        ("responseTimeout", float("nan")),
        ("responseTimeout", 0),
        ("startupTimeout", 0.0),
        ("maxBatchDelay", float("inf")),
        pytest.param("maxBatchDelay", 10**400, id="maxBatchDelay-huge"),
        pytest.param("responseTimeout", 10**400, id="responseTimeout-huge"),
        ("deviceType", "tpu"),
        ("deviceIds", [0, "one"]),
        ("deviceIds", 0),
        ("v2_flatten", "yes"),
        ("v2_rows", ["batch"]),
    ],
)
def test_a_wrong_value_is_a_warning_and_ignored(
    word: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert checked_config({word: value, "handler": value}, "model m: c.yaml") == {"handler": value}
    (message,) = caplog.messages
    assert message.startswith(f"model m: c.yaml: {word}: {value!r} is not ")
    assert message.endswith("; ignored")


@pytest.mark.parametrize(
    ("text", "stateful"),
    [
        ("sequenceMaxIdleMSec: 60000\nmaxNumSequence: 4\n", True),
        ("sequenceMaxIdleMSec: 60000\nsequenceBatching: false\n", False),
        ("sequenceMaxIdleMSec: 0\n", False),
    ],
)
def test_sequences_as_in_torchserve_0_10(
    tmp_path: Path, work: Path, text: str, stateful: bool
) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    assert open_archive(source, work).config.get("sequenceBatching", False) is stateful


def test_a_configuration_that_the_manifest_does_not_name(
    tmp_path: Path, work: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after ``torch-model-archiver --extra-files model-config.yaml``."""
    files = {**FILES, "model-config.yaml": "batchSize: 8"}
    assert open_archive(make_archive(tmp_path / "a.mar", files), work).config == {}
    (message,) = caplog.messages
    assert message.startswith("a.mar: model-config.yaml has no effect: the manifest does not name")


def test_an_empty_configuration(tmp_path: Path, work: Path) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": ""}, configFile="c.yaml")
    assert open_archive(source, work).config == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "c.yaml: not valid YAML"),
        ("a: 1\nb:\n\t- 2\n", "that cannot start any token (line 3)"),
        ("- a", "c.yaml: got a list, a mapping is wanted"),
        ("5", "c.yaml: got a number, a mapping is wanted"),
        ("!!python/object/apply:os.getcwd []", "c.yaml: not valid YAML: could not determine"),
        ("[" * 5000, "c.yaml: not valid YAML"),
        ("a: 2026-13-45", "c.yaml: not valid YAML: month must be in 1..12"),
        ("a: !!bool x", "c.yaml: not valid YAML: 'x'"),
        ('a: !!int ""', "c.yaml: not valid YAML: string index out of range"),
        ("a: !!timestamp x", "c.yaml: not valid YAML"),
        ("a: &a [*a]", "c.yaml: more than 50000 values"),
        (
            "a0: &a0 [1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)),
            "c.yaml: more than 50000 values",
        ),
    ],
)
def test_wrong_configurations(tmp_path: Path, work: Path, text: str, reason: str) -> None:
    source = make_archive(tmp_path / "a.mar", {**FILES, "c.yaml": text}, configFile="c.yaml")
    assert reason in refusal(source, work)
