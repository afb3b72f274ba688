import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from kserve_torch.errors import LoadFailed
from kserve_torch.ts.service import PredictionException as FromService
from kserve_torch.ts.utils.hf_utils import download_model
from kserve_torch.ts.utils.timeit_decorator import timeit
from kserve_torch.ts.utils.util import (
    CLEANUP_REGEX,
    PredictionException,
    PT2Backend,
    deprecated,
    get_yaml_config,
)


def test_prediction_exception():
    error = PredictionException("too big", 599)
    assert (error.message, error.error_code, str(error)) == ("too big", 599, "too big : 599")
    assert PredictionException("x").error_code == 500
    assert FromService is PredictionException


def test_yaml(tmp_path):
    (tmp_path / "a.yaml").write_text("handler: {x: 1}")
    (tmp_path / "empty.yaml").write_text("")
    assert get_yaml_config(tmp_path / "a.yaml") == {"handler": {"x": 1}}
    assert get_yaml_config(str(tmp_path / "empty.yaml")) == {}


def test_deprecated():
    @deprecated("0.9", "other.name", FutureWarning)
    def old(x):
        return x

    with pytest.warns(FutureWarning, match="old is deprecated since 0.9; use other.name"):
        assert old(3) == 3


def test_backends_are_strings():
    assert PT2Backend.INDUCTOR == "inductor"


def test_cleanup():
    assert CLEANUP_REGEX.sub("", "<b>a</b>&amp;&#39;b") == "ab"


def test_timeit_prints_a_calls_time(capsys):
    @timeit
    def add(a, *, b):
        return a + b

    assert (add(1, b=2), add.__name__) == (3, "add")
    said = capsys.readouterr().out
    assert re.fullmatch(r"func: 'add' took \d\.\d{4} s, \d\.\d{4} s of CPU time\n", said)


def test_download_asks_the_hub(monkeypatch):
    asked = {}
    hub = ModuleType("huggingface_hub")
    hub.__spec__ = ModuleSpec("huggingface_hub", None)
    hub.snapshot_download = lambda **options: asked.update(options) or "/cache/m"
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert download_model("org/m", model_path="/cache", use_auth_token=False) == "/cache/m"
    assert (asked["repo_id"], asked["revision"], asked["token"]) == ("org/m", "main", False)
    assert "*.safetensors" in asked["allow_patterns"]


def test_download_without_the_package(monkeypatch):
    monkeypatch.setattr("kserve_torch.ts.absent.find_spec", lambda name: None)
    with pytest.raises(LoadFailed, match="download_model needs the package huggingface_hub"):
        download_model("org/m")
