from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from kserve_torch.errors import AnswerTooLarge, InvalidInput
from kserve_torch.events import Responded
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


@pytest.mark.parametrize(
    ("error", "status"),
    [(InvalidInput("x"), 400), (ValueError("x"), 500), (asyncio.CancelledError(), 499)],
)
async def test_how_a_call_ended_is_told(error: BaseException, status: int) -> None:
    registry = Registry(Settings())
    told: list[int] = []
    registry.observers.add(lambda event: told.append(event.status), [Responded])
    with suppress(type(error)), Exchange(registry, "grpc", 100, pb.ModelInferRequest(), Call()):
        raise error
    assert told == [status]
    await registry.close()
