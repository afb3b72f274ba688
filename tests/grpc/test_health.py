import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb

from kserve_torch.grpc import health, oip
from kserve_torch.grpc.health import Health
from kserve_torch.grpc.rpc import Call

from .serving import Serving

SERVING = pb.HealthCheckResponse.SERVING
NOT_SERVING = pb.HealthCheckResponse.NOT_SERVING


class Switch:
    def __init__(self) -> None:
        self.on = False

    def __call__(self) -> bool:
        return self.on


def check(service: str = "") -> pb.HealthCheckRequest:
    return pb.HealthCheckRequest(service=service)


async def test_check_asks_at_the_moment() -> None:
    ready = Switch()
    servicer = Health(ready, ["a.B"])
    assert (await servicer.Check(check("a.B"), Call())).status == NOT_SERVING
    ready.on = True
    assert (await servicer.Check(check("a.B"), Call())).status == SERVING
    assert (await servicer.Check(check(), Call())).status == SERVING
    servicer.close()
    assert (await servicer.Check(check(), Call())).status == NOT_SERVING


async def test_watch_tells_of_changes_and_only_of_changes() -> None:
    ready = Switch()
    servicer = Health(ready, [])
    seen: asyncio.Queue[int | None] = asyncio.Queue()

    async def watch() -> None:
        async for response in servicer.Watch(check(), Call()):
            seen.put_nowait(response.status)
        seen.put_nowait(None)

    watching = asyncio.create_task(watch())
    assert await seen.get() == NOT_SERVING
    servicer.refresh()
    ready.on = True
    servicer.refresh()
    assert await seen.get() == SERVING
    ready.on = False
    servicer.refresh()
    assert await seen.get() == NOT_SERVING
    servicer.close()
    assert await seen.get() is None
    await watching
    assert seen.empty()


async def test_watch_of_an_unknown_service() -> None:
    servicer = Health(Switch(), [])
    watching = servicer.Watch(check("nobody"), Call())
    assert (await anext(watching)).status == pb.HealthCheckResponse.SERVICE_UNKNOWN
    await watching.aclose()


@pytest.mark.parametrize("service", ["", *oip.NAMES])
async def test_over_the_wire(serving: Serving, service: str) -> None:
    stub = serving.stub(health.SERVICE, serving.settings.grpc_port)
    assert (await stub.Check(check(service))).status == SERVING


async def test_unknown_service_over_the_wire(serving: Serving) -> None:
    stub = serving.stub(health.SERVICE, serving.settings.grpc_port)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Check(check("nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_model_that_is_loaded_after_the_end_harms_nobody() -> None:
    async def serve() -> Health:
        return Health(Switch(), [])

    asyncio.run(serve()).refresh()
