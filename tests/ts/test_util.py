import pytest

from kserve_torch.ts.service import PredictionException as FromService
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
