from pathlib import Path

import pytest

from kserve_torch.settings import load_settings
from kserve_torch.settings.report import reference, settings_report
from kserve_torch.settings.table import KEYS


def test_every_value_is_shown_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "config.properties"
    file.write_text(
        "keystore_pass=hunter2\nvmargs=-Xmx1g\nnew=1\n"
        'models={"m":{"1.0":{"batchSize":2,"marName":"a.mar","maxBatchDelay":5000}}}\n'
        "allowed_urls=https://a/.*,https://b/.*\n"
    )
    argv = ["--model-store", str(tmp_path), "--ts-config", str(file), "--access_log", "off"]
    lines = settings_report(load_settings(argv, {"TS_DRAIN_SECONDS": "2.5"})).splitlines()
    rows = dict(line.split("  #", 1)[0].rstrip().split("=", 1) for line in lines[: len(KEYS)])
    assert rows.keys() == KEYS.keys()
    assert rows["access_log"] == "false"
    assert rows["drain_seconds"] == "2.5"
    assert rows["models"] == "m=a.mar (batchSize=2 maxBatchDelay=5000)"
    assert rows["load_models"] == "m=a.mar"
    assert rows["allowed_urls"] == "https://a/.*,https://b/.*"
    assert rows["keystore_pass"] == "********"
    assert rows["management_address"] == "http://0.0.0.0:8085"
    sources = dict(line.split("  # ", 1) for line in lines[: len(KEYS)])
    shown = {line.split("=")[0]: source for line, source in sources.items()}
    assert shown["access_log"] == "command line --access_log"
    assert shown["ts_config"] == "command line --ts_config"
    assert shown["drain_seconds"] == "environment TS_DRAIN_SECONDS"
    assert shown["models"] == str(file)
    assert shown["load_models"] == "default: models"
    assert shown["management_address"] == "default: inference_address"
    assert lines[len(KEYS) :] == ["# ignored: vmargs", "# unknown: new"]
    assert not any("hunter2" in line for line in lines)


def test_what_is_not_set_has_no_value_and_its_default_in_words(tmp_path: Path) -> None:
    argv = ["--model-store", str(tmp_path), "--models", "m.mar", "--enable_grpc", "false"]
    lines = settings_report(load_settings(argv, {})).splitlines()
    shown = dict(" ".join(line.split()).split("=", 1) for line in lines)
    assert shown["models"] == " # default"
    assert shown["number_of_gpu"] == " # default: all"
    assert shown["http_port"] == "8080 # default"
    assert shown["ts_config"].startswith(" # default: MODEL_DIR/")
    assert shown["cors_allowed_methods"] == " # default: GET, POST, PUT, OPTIONS"
    assert shown["grpc_port"] == " # enable_grpc"


@pytest.mark.parametrize("models", ["none", "all", "m=m.mar,n.mar"])
def test_values_are_shown_as_they_are_written(tmp_path: Path, models: str) -> None:
    argv = ["--model-store", str(tmp_path), "--models", models, "--cors_allowed_origin", "*"]
    environ = {"TS_TOKEN_EXPIRATION_TIME_MIN": "5256000.5", "TS_METRICS_ADDRESS": "unix:/m"}
    settings = load_settings(argv, environ)
    rows = (line.split("  #")[0].rstrip() for line in settings_report(settings).splitlines())
    for name, text in (row.split("=", 1) for row in rows):
        if text and not KEYS[name].secret:
            assert KEYS[name].parse(text, "the report") == getattr(settings, name)


def test_urls_of_models_are_shown_without_secrets(tmp_path: Path) -> None:
    models = "m=https://me:secret@host/m.mar?token=secret,/models/n.mar"
    argv = ["--model-store", str(tmp_path), "--models", models]
    report = settings_report(load_settings(argv, {}))
    assert "load_models=m=https://host/m.mar,/models/n.mar " in report
    assert "secret" not in report


def test_the_reference_has_a_row_for_every_key() -> None:
    rows = reference().splitlines()
    for name in KEYS:
        assert sum(row.startswith(f"| `{name}` |") for row in rows) == 1
    columns = {row.replace("\\|", "").count("|") for row in rows if row.startswith("|")}
    assert columns == {5}
    assert "changeit" not in reference()
    assert "***" not in reference()
    assert "`vmargs`" in rows[-1]


def test_the_reference_names_the_options_and_variables_that_a_key_does_not_tell() -> None:
    rows = {row.split("`")[1]: row for row in reference().splitlines()[4:-2]}
    assert rows["job_queue_size"].endswith("| maximum queued requests per model |")
    assert rows["load_models"].endswith(" (`--models`, `--load_models`, `TS_LOAD_MODELS`) |")
    assert rows["keystore_pass"].endswith(" (`TS_KEYSTORE_PASS`) |")
    assert rows["models"].endswith(" (neither option nor variable) |")
