import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from kserve_torch.errors import SettingError
from kserve_torch.grpc import health, management, oip, server, torchserve
from kserve_torch.grpc.protos import inference_pb2, management_pb2
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.tls import identity
from kserve_torch.tokens import Access, Tokens

from ..server import free_ports, taken_port
from ..waiting import until
from .serving import Serving, Stub, write_archive


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


def int8(size: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(size)])
    request.inputs.add(name="x", datatype="INT8", shape=[size])
    return request


async def test_each_port_has_its_services(serving: Serving) -> None:
    settings = serving.settings
    live, models = pb.ServerLiveRequest(), management_pb2.ListModelsRequest()
    for port, has_oip, has_management in (
        (settings.grpc_port, True, False),
        (settings.grpc_inference_port, True, False),
        (settings.grpc_management_port, False, True),
    ):
        calls = (
            (serving.stub(oip.SERVICE, port, oip.NAMES[0]).ServerLive(live), has_oip),
            (serving.stub(management.SERVICE, port).ListModels(models), has_management),
        )
        for call, there in calls:
            if there:
                await call
            else:
                assert await refused(call) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_port_that_is_taken_is_named(store: Path) -> None:
    with taken_port() as port:
        serving = Serving(store, grpc_inference_port=port)
        with pytest.raises(SettingError, match=f"^grpc_inference_port: .*127.0.0.1:{port}"):
            await serving.server.start()
        await serving.stop()


async def test_a_port_of_another_server_of_ours_is_taken_too(store: Path, serving: Serving) -> None:
    other = Serving(store, grpc_management_port=serving.settings.grpc_management_port)
    with pytest.raises(SettingError, match=r"^grpc_management_port: "):
        await other.server.start()
    await other.stop()


async def silent(serving: Serving) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of a client that has said what it must."""
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.settings.grpc_port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    return reader, writer


async def pinged(reader: asyncio.StreamReader) -> None:
    """Reads up to a PING (RFC 9113 6.7); a GOAWAY may not come."""
    kind = None
    async with asyncio.timeout(20):
        while kind != 6:
            head = await reader.readexactly(9)
            kind = head[3]
            assert kind != 7
            await reader.readexactly(int.from_bytes(head[:3]))


async def test_a_client_that_says_nothing_is_asked_whether_it_is_there(store: Path) -> None:
    serving = Serving(store, receive_timeout=1.0)
    await serving.start([])
    reader, writer = await silent(serving)
    await pinged(reader)
    writer.close()
    await serving.stop()


async def test_a_client_may_ask_often_whether_the_server_is_there(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its call runs; a fourth ping would end it with ``too_many_pings``."""
    monkeypatch.setattr(server, "_PING_MS", 0)
    serving = Serving(store)
    await serving.start([])
    reader, writer = await silent(serving)
    for _ in range(5):
        writer.write(bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"pingping")
        await pinged(reader)
    writer.close()
    await serving.stop()


async def test_settings_that_name_one_port_share_it(store: Path) -> None:
    (port,) = free_ports(1)
    ports = {"grpc_port": port, "grpc_inference_port": port, "grpc_management_port": port}
    serving = Serving(store, **ports)
    await serving.start([])
    await serving.oip().ServerLive(pb.ServerLiveRequest())
    models = serving.stub(management.SERVICE, port)
    await models.ListModels(management_pb2.ListModelsRequest())
    await serving.stop()


async def test_no_kserve_port(store: Path) -> None:
    serving = Serving(store, grpc_port=None)
    await serving.start([])
    stub = serving.stub(oip.SERVICE, serving.settings.grpc_inference_port)
    await stub.ServerLive(pb.ServerLiveRequest())
    await serving.stop()


async def test_message_sizes(store: Path) -> None:
    serving = Serving(
        store,
        grpc_max_receive_message_length=10_000,
        grpc_max_send_message_length=5000,
        max_request_size=1000,
        max_response_size=500,
    )
    await serving.start(["echo"])
    native = serving.stub(oip.SERVICE, serving.settings.grpc_inference_port)
    for stub, good, long_answer, long_request in (
        (serving.oip(), 4000, 6000, 11_000),
        (native, 300, 700, 2000),
    ):
        assert len((await stub.ModelInfer(int8(good))).raw_output_contents[0]) == good
        for size in (long_answer, long_request):
            code = await refused(stub.ModelInfer(int8(size)))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    # Who was refused for a long request was not read; for a long answer, not answered.
    assert [event.status for event in serving.responses()] == [200, 500] * 2
    await serving.stop()


async def test_metadata_may_be_as_long_as_headers_of_http(serving: Serving) -> None:
    alive = serving.oip().ServerLive
    await alive(pb.ServerLiveRequest(), metadata=[("authorization", "x" * 60_000)])
    call = alive(pb.ServerLiveRequest(), metadata=[("authorization", "x" * 90_000)])
    assert await refused(call) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_port_has_so_many_calls_at_a_time(store: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    serving = Serving(store, max_connections=1)
    await serving.start(["gate"])
    native = serving.stub(oip.SERVICE, serving.settings.grpc_inference_port)
    running = await held(serving, tmp_path / "pipe")
    live = pb.ServerLiveRequest()
    assert await refused(native.ServerLive(live)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await serving.oip().ServerLive(live)
    (tmp_path / "pipe").open("w").close()
    await running
    async with asyncio.timeout(10):
        while await native.ServerLive(live).code() is not grpc.StatusCode.OK:
            pass
    await serving.stop()


async def test_a_burst_of_calls_waits_its_turn(serving: Serving) -> None:
    """Of more than a thousand that wait, gRPC's own limit cancels some at random."""
    live = serving.oip().ServerLive
    burst = [live(pb.ServerLiveRequest()) for _ in range(1500)]
    assert all(answer.live for answer in await asyncio.gather(*burst))


async def test_calls_wait_for_the_event_loop_as_long_as_their_clients(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler may hold the interpreter's lock for longer than gRPC's own limit of 30 s."""
    options: list[dict[str, int]] = []
    make = grpc.aio.server

    def noting(**more: Any) -> grpc.aio.Server:
        options.append(dict(more["options"]))
        return make(**more)

    monkeypatch.setattr(grpc.aio, "server", noting)
    serving = Serving(store)
    await serving.start(["echo"])
    await serving.stop()
    assert options
    assert all(one["grpc.server_max_unrequested_time_in_server"] > 1e9 for one in options)


@pytest.mark.parametrize(
    "name",
    [
        "grpc_max_receive_message_length",
        "grpc_max_send_message_length",
        "max_request_size",
        "max_response_size",
        "max_connections",
        "grpc_inference_max_connection_age_ms",
        "grpc_management_max_connection_age_ms",
    ],
)
async def test_limits_beyond_grpcs_own(store: Path, name: str) -> None:
    serving = Serving(store, **{name: 2**32})
    await serving.start(["echo"])
    native = serving.stub(oip.SERVICE, serving.settings.grpc_inference_port)
    for stub in (serving.oip(), native):
        assert len((await stub.ModelInfer(int8(3))).raw_output_contents[0]) == 3
    await serving.stop()


async def test_an_answer_over_the_limit_does_not_end_its_stream(store: Path) -> None:
    serving = Serving(store, grpc_max_send_message_length=5000)
    await serving.start(["echo"])
    answers = serving.oip().ModelStreamInfer(iter([int8(6000), int8(3)]))
    refusal, answer = [one async for one in answers]
    assert refusal.error_message.endswith(" bytes, this port sends 5000 at most")
    assert answer.infer_response.raw_output_contents[0] == bytes(3)
    await serving.stop()


async def test_tokens(store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = Tokens(tmp_path, 60.0)
    serving = Serving(store, tokens=tokens)
    await serving.start(["echo"])
    keys = {access: tokens._tokens[access].key for access in Access}
    calls = {
        Access.INFERENCE: lambda **more: serving.oip().ModelInfer(int8(1), **more),
        Access.MANAGEMENT: lambda **more: serving.stub(
            management.SERVICE, serving.settings.grpc_management_port
        ).ListModels(management_pb2.ListModelsRequest(), **more),
    }
    for access, call in calls.items():
        for key in ("nonsense", *(keys[other] for other in Access if other is not access)):
            wrong = (("authorization", f"Bearer {key}"),)
            assert await refused(call(metadata=wrong)) is grpc.StatusCode.PERMISSION_DENIED
        assert await refused(call()) is grpc.StatusCode.PERMISSION_DENIED
        await call(metadata=(("authorization", f"Bearer {keys[access]}"),))
    probe = serving.stub(health.SERVICE, serving.settings.grpc_port)
    await probe.Check(health_pb2.HealthCheckRequest())
    await serving.stop()
    assert not caplog.records


async def test_tokens_of_kserves_service(store: Path, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path, 60.0)
    serving = Serving(store, tokens=tokens, enable_model_api=True)
    await serving.start(["echo"])
    stub = serving.oip()
    for method, request in (
        ("ServerLive", pb.ServerLiveRequest()),
        ("ServerReady", pb.ServerReadyRequest()),
        ("ModelReady", pb.ModelReadyRequest(name="echo")),
        ("ServerMetadata", pb.ServerMetadataRequest()),
        ("ModelMetadata", pb.ModelMetadataRequest(name="echo")),
        ("RepositoryIndex", pb.RepositoryIndexRequest()),
    ):
        await getattr(stub, method)(request)
    load = pb.RepositoryModelLoadRequest(model_name="echo")
    unload = pb.RepositoryModelUnloadRequest(model_name="echo")
    for change in (
        partial(stub.RepositoryModelLoad, load),
        partial(stub.RepositoryModelUnload, unload),
    ):
        for key in ("nonsense", tokens._tokens[Access.INFERENCE].key):
            wrong = (("authorization", f"Bearer {key}"),)
            assert await refused(change(metadata=wrong)) is grpc.StatusCode.PERMISSION_DENIED
        key = tokens._tokens[Access.MANAGEMENT].key
        await change(metadata=(("authorization", f"Bearer {key}"),))
    await serving.stop()


async def held(serving: Serving, pipe: Path) -> Any:
    """A call that runs until somebody opens the pipe."""
    native = serving.stub(torchserve.SERVICE, serving.settings.grpc_inference_port)
    request = inference_pb2.PredictionsRequest(model_name="gate")
    request.input["data"] = str(pipe).encode()
    running = native.Predictions(request)
    await until(lambda: serving.registry.find("gate").statistics().running)
    return running


async def test_watchers_are_told_of_a_default_version_that_is_not_ready_and_of_draining(
    store: Path,
) -> None:
    serving = Serving(store)
    write_archive(store, "later", "echo", version="2.0")
    await serving.start(["echo"])
    second = await serving.registry.register("later", name="echo")
    await second.scale(0, 0)
    await until(lambda: not second.ready)
    watch = serving.stub(health.SERVICE, serving.settings.grpc_port).Watch(
        health_pb2.HealthCheckRequest()
    )
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    serving.registry.set_default("echo", "2.0")
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    serving.registry.set_default("echo", "1.0")
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    serving.registry.draining = True
    serving.server.refresh()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    await serving.stop()


async def test_stop_tells_watchers_refuses_new_calls_on_every_port_and_lets_running_ones_end(
    store: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    serving = Serving(store, drain_seconds=0)
    await serving.start(["gate"])
    watch = serving.stub(health.SERVICE, serving.settings.grpc_port).Watch(
        health_pb2.HealthCheckRequest()
    )
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    models = serving.stub(management.SERVICE, serving.settings.grpc_management_port)
    await models.ListModels(management_pb2.ListModelsRequest())
    running = await held(serving, tmp_path / "pipe")

    stopping = asyncio.create_task(serving.server.stop(grace=30))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await watch.read() is grpc.aio.EOF
    async with asyncio.timeout(10):
        while True:
            call = models.ListModels(management_pb2.ListModelsRequest())
            if await call.code() is grpc.StatusCode.UNAVAILABLE:
                break
    assert not stopping.done()
    (tmp_path / "pipe").open("w").close()
    assert (await running).prediction == b"open"
    await stopping
    await serving.stop()


async def test_stop_ends_streams_after_the_answers_that_they_wait_for(
    store: Path, tmp_path: Path
) -> None:
    """Who keeps a stream open for its next request would hold up the end for the whole grace."""
    os.mkfifo(tmp_path / "pipe")
    serving = Serving(store, drain_seconds=0)
    await serving.start(["gate"])
    native = serving.stub(torchserve.SERVICE, serving.settings.grpc_inference_port)
    idle, busy = native.StreamPredictions2(), native.StreamPredictions2()
    request = inference_pb2.PredictionsRequest(model_name="absent", sequence_id="a")
    await idle.write(request)
    assert (await idle.read()).status.code == grpc.StatusCode.NOT_FOUND.value[0]
    request.model_name = "gate"
    request.input["data"] = str(tmp_path / "pipe").encode()
    await busy.write(request)
    await until(lambda: serving.registry.find("gate").statistics().running)

    stopping = asyncio.create_task(serving.server.stop(grace=30))
    assert await refused(idle.read()) is grpc.StatusCode.UNAVAILABLE
    assert not stopping.done()
    (tmp_path / "pipe").open("w").close()
    assert (await busy.read()).prediction == b"open"
    assert await refused(busy.read()) is grpc.StatusCode.UNAVAILABLE
    await asyncio.wait_for(stopping, 10)
    await serving.stop()


# --- TLS ------------------------------------------------------------------------------------------


def self_signed(folder: Path) -> dict[str, Path]:
    files = identity(Settings(), folder)
    return {"private_key_file": files.key, "certificate_file": files.certificate}


async def test_tls_on_the_ports_of_torchserve(store: Path, tmp_path: Path) -> None:
    files = self_signed(tmp_path)
    serving = Serving(store, enable_grpc_ssl=True, **files)
    await serving.start([])
    trusted = grpc.ssl_channel_credentials(files["certificate_file"].read_bytes())
    target = f"localhost:{serving.settings.grpc_inference_port}"
    options = (("grpc.ssl_target_name_override", "localhost"),)
    async with grpc.aio.secure_channel(target, trusted, options) as channel:
        stub: Any = Stub(channel, oip.SERVICE)
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
    assert (await serving.oip().ServerLive(pb.ServerLiveRequest())).live
    await serving.stop()


async def test_tls_with_a_certificate_that_is_made_up(store: Path) -> None:
    serving = Serving(store, enable_grpc_ssl=True)
    await serving.start([])
    trusted = (serving.registry.workdir / "certificate.pem").read_bytes()
    target = f"localhost:{serving.settings.grpc_inference_port}"
    credentials = grpc.ssl_channel_credentials(trusted)
    async with grpc.aio.secure_channel(target, credentials) as channel:
        stub: Any = Stub(channel, oip.SERVICE)
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live
    await serving.stop()


async def test_a_connection_may_be_as_old_as_its_port_says() -> None:
    settings = Settings(grpc_inference_max_connection_age_ms=1000)
    registry = Registry(settings)
    ports = server.GrpcServer(registry, settings)
    ages = {
        binding.settings: dict(ports._options(binding)).get("grpc.max_connection_age_ms")
        for binding in settings.grpc_bindings()
    }
    assert ages == {
        ("grpc_inference_port",): 1000,
        ("grpc_management_port",): None,
        ("grpc_port",): 1000,
    }
    await registry.close()
