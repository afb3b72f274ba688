from pathlib import Path

import pytest

from kserve_torch.errors import SettingError
from kserve_torch.settings.properties import read_properties

ENVIRON = {"STORE": "/models", "PORT": "8085"}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.properties"
    path.write_text(text, encoding="latin-1")
    return path


def test_the_syntax_is_that_of_java(tmp_path: Path) -> None:
    text = (
        "# a comment\n"
        "! another\n"
        "model_store=/mnt/models/model-store\n"
        "job_queue_size : 10 \n"
        "load_models=a.mar,\\\n    b.mar\n"
        'models={"m":{"1.0":{"minWorkers":1}}}\n'
        "cors_allowed_origin=\\u00fc\n"
        "empty=\n"
        "job_queue_size=11\n"
    )
    assert read_properties(write(tmp_path, text), {}) == {
        "model_store": "/mnt/models/model-store",
        "job_queue_size": "11",
        "load_models": "a.mar,b.mar",
        "models": '{"m":{"1.0":{"minWorkers":1}}}',
        "cors_allowed_origin": "ü",
        "empty": "",
    }


def test_variables_are_replaced_wherever_they_stand(tmp_path: Path) -> None:
    text = "model_store=$$STORE$$/store\ninference_address=http://0.0.0.0:$$PORT$$\nprice=5$\n"
    assert read_properties(write(tmp_path, text), ENVIRON) == {
        "model_store": "/models/store",
        "inference_address": "http://0.0.0.0:8085",
        "price": "5$",
    }


def test_a_variable_that_is_not_set_ends_the_start(tmp_path: Path) -> None:
    path = write(tmp_path, "model_store=$$NOWHERE$$/store\n")
    with pytest.raises(SettingError) as caught:
        read_properties(path, ENVIRON)
    assert str(caught.value) == (f"model_store: $$NOWHERE$$: no such environment variable ({path})")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent.properties"
    with pytest.raises(SettingError) as caught:
        read_properties(path, {})
    assert str(caught.value).startswith(f"ts_config: {path}: No such file or directory (as user")


def test_a_broken_escape_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"ts_config: .*\\u12"):
        read_properties(write(tmp_path, "a=\\u12\n"), {})


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Is a directory"):
        read_properties(tmp_path, {})
