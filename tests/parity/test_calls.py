"""TorchServe's two gRPC services, on both servers."""

from collections.abc import Iterator

import pytest

from .calls import INFERENCE, MANAGEMENT
from .pair import Pair

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pair(echo_store, tmp_path_factory) -> Iterator[Pair]:
    with Pair(echo_store, tmp_path_factory.mktemp("calls"), load_models="echo.mar") as both:
        yield both


@pytest.mark.parametrize("rpc", INFERENCE, ids=lambda rpc: rpc.name)
def test_inference(pair, rpc):
    pair.compare(rpc)


@pytest.mark.parametrize("rpc", MANAGEMENT, ids=lambda rpc: rpc.name)
def test_management(pair, rpc):
    pair.compare(rpc)
