from __future__ import annotations

import pytest

from kserve_torch.errors import AnswerTooLarge
from kserve_torch.grpc.exchange import Exchange
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings


async def test_an_answer_as_large_as_the_port_sends() -> None:
    registry = Registry(Settings())
    exchange = Exchange(registry, "grpc", 100, pb.ModelInferRequest(), Call())
    assert exchange.serialize(bytes, 100) == bytes(100)
    with pytest.raises(AnswerTooLarge, match="the answer has 101 bytes, this port sends 100 at m"):
        exchange.serialize(bytes, 101)
    await registry.close()
