"""Every route of the inference API and of the management API, on both servers."""

from collections.abc import Iterator

import pytest

from .pair import Pair
from .routes import INFERENCE, MANAGEMENT

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pair(echo_store, tmp_path_factory) -> Iterator[Pair]:
    with Pair(echo_store, tmp_path_factory.mktemp("routes"), load_models="echo.mar") as both:
        yield both


@pytest.mark.parametrize("step", INFERENCE, ids=lambda step: step.name)
def test_inference(pair, step):
    pair.compare(step)


@pytest.mark.parametrize("step", MANAGEMENT, ids=lambda step: step.name)
def test_management(pair, step):
    pair.compare(step)
