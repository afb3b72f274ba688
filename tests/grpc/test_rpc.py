import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from kserve_torch.errors import InvalidInput, NotReady
from kserve_torch.grpc import oip
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.grpc.rpc import Call, Streams, bind

from ..waiting import until
from .serving import Serving, refused


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x05abc", b"\x0a\x01\xff"])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_bytes_that_are_no_message(serving: Serving, method: str, garbage: bytes) -> None:
    channel = serving.channel(serving.settings.grpc_port)
    path = f"/inference.GRPCInferenceService/{method}"
    if method == "ModelInfer":
        call: Any = channel.unary_unary(path)(garbage)
    else:
        call = channel.stream_stream(path)(iter([garbage])).read()
    assert await refused(call) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the request is not a valid ModelInferRequest",
    )


async def test_unknown_fields_do_no_harm(serving: Serving) -> None:
    request = pb.ServerLiveRequest.FromString(b"\xfa\x3f\x03abc")
    assert (await serving.oip().ServerLive(request)).live


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/Nothing", "/no.Service/Live"])
async def test_what_nobody_serves(serving: Serving, path: str) -> None:
    call = serving.channel(serving.settings.grpc_port).unary_unary(path)
    assert (await refused(call(b"")))[0] is grpc.StatusCode.UNIMPLEMENTED


async def test_many_calls_at_once_get_their_own_answers(serving: Serving) -> None:
    stub = serving.oip()

    def asking(i: int) -> Message:
        request = pb.ModelInferRequest(
            model_name="echo", id=str(i), raw_input_contents=[bytes([i])]
        )
        request.inputs.add(name="x", datatype="UINT8", shape=[1])
        return request

    answers = await asyncio.gather(*(stub.ModelInfer(asking(i)) for i in range(64)))
    assert [(a.id, a.raw_output_contents[0]) for a in answers] == [
        (str(i), bytes([i])) for i in range(64)
    ]


async def test_gzip(serving: Serving) -> None:
    response = await serving.oip().ServerLive(
        pb.ServerLiveRequest(), compression=grpc.Compression.Gzip
    )
    assert response.live


async def test_no_stream_begins_once_they_are_closed() -> None:
    async def messages() -> AsyncIterator[bytes]:
        yield b""

    streams = Streams()
    read = [message async for message in streams.parse_each(pb.ServerLiveRequest, messages())]
    assert read == [pb.ServerLiveRequest()]
    streams.close()
    with pytest.raises(NotReady, match="stopped"):
        await anext(streams.parse_each(pb.ServerLiveRequest, messages()))


async def test_a_refused_request_is_no_garbage() -> None:
    """Its megabytes would stay in memory until Python looks for that."""

    errors: list[weakref.ref[InvalidInput]] = []

    class Refusing:
        async def ModelInfer(self, message: Message, call: Call) -> bytes:
            error = InvalidInput("no")
            errors.append(weakref.ref(error))
            raise error

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([bind(oip.SERVICE, Refusing(), Streams())])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary(f"/{oip.SERVICE.full_name}/ModelInfer")
            for _ in range(3):  # gRPC itself holds the first and the last
                assert await refused(ask(b"")) == (grpc.StatusCode.INVALID_ARGUMENT, "no")
            await until(lambda: errors[1]() is None)
    finally:
        gc.enable()
        await server.stop(0)


async def test_a_client_that_leaves_while_its_error_is_sent(serving: Serving) -> None:
    """Its deadline has come, mostly: gRPC would log a traceback for it.

    The moment cannot be hit at will, so the call's context is one that always meets it.
    """

    class Leaving:
        async def abort(self, *status: object) -> None:
            raise grpc.aio.InternalError("the call has ended")

        def time_remaining(self) -> float:
            return 0.0

        def invocation_metadata(self) -> None:
            return None

    service = bind(oip.SERVICE, oip.OpenInference(serving.registry, 1), Streams()).service(
        SimpleNamespace(method=f"/{oip.SERVICE.full_name}/ModelInfer")
    )
    with pytest.raises(asyncio.CancelledError):
        await service.unary_unary(b"", Leaving())
