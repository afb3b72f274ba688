import asyncio
import os
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from kserve_torch.codec.buffers import to_raw
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.codec.tensors import to_typed
from kserve_torch.errors import DeadlineExceeded
from kserve_torch.grpc import oip
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.messages import Tensor

from ..threads import Readers
from ..waiting import until
from .serving import Serving, refused, write_archive


def infer(model: str, *arrays: tuple[str, Any], raw: bool = True, **members: Any) -> Message:
    """A request whose inputs are called a, b, ..., each with a datatype and its elements."""
    request = pb.ModelInferRequest(model_name=model, **members)
    for name, (datatype, values) in zip("abc", arrays, strict=False):
        array = np.array(values, DATATYPES[datatype].dtype)
        tensor = Tensor(name=name, datatype=datatype, array=array)
        added = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            request.raw_input_contents.append(bytes(to_raw(tensor)))
        else:
            field = getattr(added.contents, DATATYPES[datatype].contents)
            field.extend(to_typed(tensor))
    return request


def parameters(**values: Any) -> dict[str, pb.InferParameter]:
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param"}
    return {
        name: pb.InferParameter(**{kinds[type(value)]: value}) for name, value in values.items()
    }


async def test_health_and_metadata(serving: Serving) -> None:
    stub = serving.oip()
    assert (await stub.ServerLive(pb.ServerLiveRequest())).live
    assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
    assert (await stub.ModelReady(pb.ModelReadyRequest(name="echo"))).ready
    assert (await stub.ModelReady(pb.ModelReadyRequest(name="echo", version="1.0"))).ready

    server = await stub.ServerMetadata(pb.ServerMetadataRequest())
    assert server.name
    assert server.version
    assert "model_repository" in server.extensions

    model = await stub.ModelMetadata(pb.ModelMetadataRequest(name="echo"))
    assert (model.name, list(model.versions)) == ("echo", ["1.0"])
    assert model.platform.startswith("pytorch_")
    assert [(x.name, x.datatype, list(x.shape)) for x in model.inputs] == [("x", "FP32", [-1, 3])]
    assert [(y.name, y.datatype, list(y.shape)) for y in model.outputs] == [("y", "INT64", [-1])]


@pytest.mark.parametrize("name", oip.NAMES)
async def test_raw_in_raw_out_under_both_names(serving: Serving, name: str) -> None:
    request = infer("echo", ("FP32", [[1.5, 2.5]]), ("INT8", [-1, 2]), id="seven")
    response = await serving.oip(name).ModelInfer(request)
    assert (response.model_name, response.model_version, response.id) == ("echo", "1.0", "seven")
    heads = [(output.name, output.datatype, list(output.shape)) for output in response.outputs]
    assert heads == [("a", "FP32", [1, 2]), ("b", "INT8", [2])]
    assert list(response.raw_output_contents) == list(request.raw_input_contents)


async def test_typed_in_typed_out(serving: Serving) -> None:
    request = infer("echo", ("FP64", [1.5]), ("BYTES", [b"\xff"]), raw=False)
    response = await serving.oip().ModelInfer(request)
    assert list(response.outputs[0].contents.fp64_contents) == [1.5]
    assert list(response.outputs[1].contents.bytes_contents) == [b"\xff"]
    assert not response.raw_output_contents


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
async def test_half_precision(serving: Serving, datatype: str) -> None:
    bits = {"FP16": [1.0, -2.0], "BF16": [0x3F80, 0xC000]}[datatype]
    response = await serving.oip().ModelInfer(infer("echo", (datatype, bits)))
    # Handlers see BF16 in float32, because numpy has nothing narrower for it.
    sent = np.array([1.0, -2.0], np.float16 if datatype == "FP16" else np.float32)
    assert response.raw_output_contents == [sent.tobytes()]


async def test_an_id_is_made_where_there_is_none(serving: Serving) -> None:
    stub = serving.oip()
    ids = {(await stub.ModelInfer(infer("echo", ("INT32", [1])))).id for _ in range(2)}
    assert len(ids) == 2
    assert all(ids)


async def test_handler_sees_metadata_parameters_and_bytes(serving: Serving) -> None:
    request = infer("mirror", ("BYTES", [b"\x00raw"]))
    request.inputs[0].parameters["axis"].int64_param = 3
    response = await serving.oip().ModelInfer(request, metadata=(("x-tenant", "blue"),))
    said = response.raw_output_contents[0][4:].decode()
    assert '"data": ["bytearray", "bytearray(b\'\\\\x00raw\')"]' in said
    assert '"x-tenant": "blue"' in said
    assert "'axis': 3" in said


async def test_bytes_in_base64_where_the_model_wants_that(serving: Serving) -> None:
    response = await serving.oip().ModelInfer(infer("base64", ("BYTES", [b"\x00raw"])))
    assert '"data": ["str", "AHJhdw=="]' in response.raw_output_contents[0][4:].decode()


async def test_one_tensor_as_a_batch_of_rows(serving: Serving) -> None:
    response = await serving.oip().ModelInfer(infer("batch", ("INT64", [[1, 2], [3, 4]])))
    assert list(response.outputs[0].shape) == [2, 2]
    assert np.frombuffer(response.raw_output_contents[0], "<i8").tolist() == [2, 4, 6, 8]


async def test_a_batch_without_rows_has_the_selected_outputs(serving: Serving) -> None:
    request = infer("batch", ("INT64", []))
    request.outputs.add(name="y")
    response = await serving.oip().ModelInfer(request)
    assert [(output.name, list(output.shape)) for output in response.outputs] == [("y", [0])]


async def test_outputs_are_selected(serving: Serving) -> None:
    request = infer("echo", ("INT32", [1]), ("INT32", [2]))
    request.outputs.add(name="b")
    response = await serving.oip().ModelInfer(request)
    assert [output.name for output in response.outputs] == ["b"]
    request.outputs[0].name = "z"
    code, text = await refused(serving.oip().ModelInfer(request))
    assert (code, text) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        'outputs[0]: no output "z", there is a, b',
    )


async def test_explain_by_parameter(serving: Serving) -> None:
    request = infer("mirror", ("INT32", [1]), parameters=parameters(verb="explain"))
    response = await serving.oip().ModelInfer(request)
    assert '"explain": "True"' in response.raw_output_contents[0].decode("latin-1")

    request = infer("mirror", ("INT32", [1]), parameters=parameters(verb="guess"))
    code, text = await refused(serving.oip().ModelInfer(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith("parameters.verb: 'guess'")


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata"])
async def test_unknown_models_and_versions(serving: Serving, method: str) -> None:
    call = getattr(serving.oip(), method)
    message = {"ModelReady": pb.ModelReadyRequest, "ModelMetadata": pb.ModelMetadataRequest}[method]
    for wrong in (message(name="nobody"), message(name="echo", version="9")):
        code, text = await refused(call(wrong))
        assert code is grpc.StatusCode.NOT_FOUND
        assert wrong.version or "nobody" in text


async def test_metrics_tell_whether_a_version_was_named(serving: Serving) -> None:
    serving.events.clear()
    for version in ("", "1.0"):
        await serving.oip().ModelInfer(infer("echo", ("INT8", [1]), model_version=version))
    assert serving.versions_asked_for() == ["", "1.0"]


async def test_infer_on_unknown_models_and_versions(serving: Serving) -> None:
    stub = serving.oip()
    for wrong in (infer("nobody", ("INT8", [1])), infer("echo", model_version="9")):
        assert (await refused(stub.ModelInfer(wrong)))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        (b"404 no such label", grpc.StatusCode.NOT_FOUND, "no such label"),
        (b"422 odd", grpc.StatusCode.INVALID_ARGUMENT, "odd"),
        (b"503 later", grpc.StatusCode.UNAVAILABLE, "later"),
        (b"599 broken", grpc.StatusCode.INTERNAL, "broken"),
        (b"status kettle", grpc.StatusCode.INVALID_ARGUMENT, "kettle"),
        (b"memory", grpc.StatusCode.RESOURCE_EXHAUSTED, None),
        (b"crash", grpc.StatusCode.INTERNAL, None),
    ],
)
async def test_what_handlers_raise(
    serving: Serving, said: bytes, code: grpc.StatusCode, text: str | None
) -> None:
    got, details = await refused(serving.oip().ModelInfer(infer("moody", ("BYTES", [said]))))
    assert got is code
    assert text is None or text == details
    assert "Traceback" not in details
    assert "/" not in details


@pytest.mark.parametrize("character", ["x", "\n", "\u6587"])
async def test_a_long_error_text_still_arrives(serving: Serving, character: str) -> None:
    request = infer("moody", ("BYTES", [b"400 " + character.encode() * 30_000]))
    code, text = await refused(serving.oip().ModelInfer(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(text) == {character}


async def test_every_inference_is_reported_once(serving: Serving) -> None:
    stub = serving.oip()
    serving.events.clear()
    await stub.ModelInfer(infer("echo", ("INT8", [1]), ("INT8", [2]), id="good"))
    await refused(stub.ModelInfer(infer("nobody", ("INT8", [1]))))
    await stub.ServerReady(pb.ServerReadyRequest())
    good, bad = serving.responses()
    assert (good.protocol, good.model, good.version) == ("grpc-v2", "echo", "1.0")
    assert (good.status, good.request_id, good.rows) == (200, "good", 2)
    assert good.seconds >= good.timing.handler > 0
    assert (bad.model, bad.version, bad.status, bad.rows) == ("nobody", "", 404, 0)


async def test_a_refused_request_is_reported_with_its_id_and_version(serving: Serving) -> None:
    stub = serving.oip()
    serving.events.clear()
    await refused(stub.ModelInfer(pb.ModelInferRequest(model_name="echo", id="bad")))
    named = (("x-request-id", "worse"),)
    await refused(stub.ModelInfer(pb.ModelInferRequest(model_name="echo"), metadata=named))
    seen = [(event.version, event.status, event.request_id) for event in serving.responses()]
    assert seen == [("1.0", 400, "bad"), ("1.0", 400, "worse")]


async def test_a_refused_request_is_reported_with_its_headers_to_who_asks_for_them(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, parent = serving.oip(), (("traceparent", "00-1-2-01"),)
    monkeypatch.setattr(serving.registry.observers, "want_headers", True)
    serving.events.clear()
    await refused(stub.ModelInfer(pb.ModelInferRequest(model_name="nobody"), metadata=parent))
    (event,) = serving.responses()
    assert event.headers["traceparent"] == "00-1-2-01"


# --- streams --------------------------------------------------------------------------------------


def words(response: Any) -> list[str]:
    return [blob[4:].decode() for blob in response.infer_response.raw_output_contents]


async def test_stream_of_a_streaming_handler(serving: Serving) -> None:
    serving.events.clear()
    requests = [infer("words", ("BYTES", [b"one two"]), id="1"), infer("echo", ("INT8", [7]))]
    responses = [response async for response in serving.oip().ModelStreamInfer(iter(requests))]
    assert [words(response) for response in responses[:2]] == [["one"], ["two"]]
    assert [response.infer_response.id for response in responses[:2]] == ["1", "1"]
    assert responses[2].infer_response.raw_output_contents == [b"\x07"]
    assert [event.timing.batch_rows for event in serving.responses()] == [1, 1]
    assert not any(event.headers for event in serving.responses())  # nobody asked for them


@pytest.mark.parametrize(
    ("selected", "told"),
    [
        ((), [{"a": [1], "b": [2]}, {"b": [2]}, {"a": [1], "b": [2]}]),
        (("b",), [{"b": [2]}, {"b": [2]}, {"b": [2]}]),
        (("a",), [{"a": [1]}, {}, {"a": [1]}]),
    ],
)
async def test_stream_of_several_inputs(
    serving: Serving, selected: tuple[str, ...], told: list[dict[str, list[int]]]
) -> None:
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in selected]
    request = infer("tells", ("INT64", [1]), ("INT64", [2]), raw=False, outputs=outputs)
    stream = serving.oip().ModelStreamInfer(iter([request]))
    responses = [response.infer_response async for response in stream]
    responses.append(await serving.oip().ModelInfer(request))
    assert [
        {output.name: list(output.contents.int64_contents) for output in response.outputs}
        for response in responses
    ] == [*told, told[-1]]


async def test_stream_of_one_tensor_as_a_batch_of_rows(tmp_path: Path) -> None:
    write_archive(tmp_path, "batch", "tells")
    serving = Serving(tmp_path)
    await serving.start(["batch"])
    request = infer("batch", ("INT64", [1, 2]), raw=False)
    responses = [response async for response in serving.oip().ModelStreamInfer(iter([request]))]
    outputs = [output for response in responses for output in response.infer_response.outputs]
    assert [list(output.contents.int64_contents) for output in outputs] == [[1, 2], [2], [1, 2]]
    await serving.stop()


async def test_parts_of_a_stream_have_the_declared_names(tmp_path: Path) -> None:
    write_archive(tmp_path, "two", "tells")
    serving = Serving(tmp_path)
    await serving.start(["two"])
    request = infer("two", ("INT64", [1]), ("INT64", [2]), raw=False)
    responses = [response async for response in serving.oip().ModelStreamInfer(iter([request]))]
    names = [[output.name for output in each.infer_response.outputs] for each in responses]
    assert names == [["y", "z"], ["z"], ["y", "z"]]
    await serving.stop()


async def test_stream_ends_with_an_empty_response_if_asked_to(serving: Serving) -> None:
    asked = parameters(triton_enable_empty_final_response=True)
    request = infer("words", ("BYTES", [b"one two"]), parameters=asked)
    responses = [response async for response in serving.oip().ModelStreamInfer(iter([request]))]
    assert len(responses) == 3
    last = responses[-1].infer_response
    assert last.parameters["triton_final_response"].bool_param
    assert not last.outputs


async def test_an_error_ends_its_request_and_not_the_stream(serving: Serving) -> None:
    requests = [
        infer("words", ("BYTES", [b"one crash"]), id="1"),
        infer("nobody", ("INT8", [1]), id="2"),
        infer("echo", ("INT8", [7]), id="3"),
    ]
    responses = [response async for response in serving.oip().ModelStreamInfer(iter(requests))]
    assert words(responses[0]) == ["one"]
    assert [bool(response.error_message) for response in responses] == [False, True, True, False]
    assert [response.infer_response.id for response in responses] == ["1", "1", "2", "3"]


async def test_what_a_handler_says_in_headers_comes_as_metadata_and_parameters(
    serving: Serving,
) -> None:
    call = serving.oip().ModelInfer(infer("marks", ("INT8", [1])))
    assert (await call).parameters["x-own"].string_param == "1"
    assert ("x-own", "1") in list(await call.trailing_metadata())


@pytest.mark.parametrize("length", [9_000, 20_000])  # gRPC has two limits
async def test_a_header_too_long_for_metadata_comes_in_the_parameters(
    serving: Serving, length: int
) -> None:
    request = infer("marks", ("INT8", [1]))
    request.parameters["length"].int64_param = length
    call = serving.oip().ModelInfer(request)
    assert len((await call).parameters["x-long"].string_param) == length
    assert list(await call.trailing_metadata()) == [("x-own", "1")]


# --- deadlines and cancellation -------------------------------------------------------------------


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe that the handler of ``gate`` opens, and waits for the other end of."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def at_gate(pipe: Path) -> Message:
    return infer("gate", ("BYTES", [str(pipe).encode()]))


async def test_a_deadline_ends_the_wait(serving: Serving, pipe: Path) -> None:
    def idle_once_opened() -> bool:
        os.close(os.open(pipe, os.O_RDWR))  # waits for no reader: the handler may not have run
        return serving.registry.find("gate").statistics().running == 0

    def answered() -> list[int]:
        return [event.status for event in serving.responses() if event.model == "gate"]

    stub = serving.oip()
    await stub.ServerLive(pb.ServerLiveRequest())  # so that it is connected
    before = len(answered())
    code, _ = await refused(stub.ModelInfer(at_gate(pipe), timeout=0.5))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: len(answered()) > before)  # the server's own deadline comes later
    assert answered()[before] in (499, 504)
    await until(idle_once_opened)


async def test_a_deadline_is_the_requests_too(serving: Serving, pipe: Path) -> None:
    """gRPC itself would only withdraw the call, as if its client had left."""
    first = serving.oip().ModelInfer(at_gate(pipe))
    await until(lambda: serving.registry.find("gate").statistics().running == 1)
    servicer = oip.OpenInference(serving.registry, 1000)
    soon = Call(deadline=time.monotonic() + 0.1)
    try:
        with pytest.raises(DeadlineExceeded, match="while it waited in the queue"):
            await asyncio.wait_for(servicer.ModelInfer(at_gate(pipe), soon), 20)
    finally:
        pipe.open("w").close()
    await first


async def test_a_cancelled_call_leaves_the_queue(serving: Serving, pipe: Path) -> None:
    stub = serving.oip()
    gate = serving.registry.find("gate")
    first = stub.ModelInfer(at_gate(pipe))
    await until(lambda: gate.statistics().running == 1)
    second = stub.ModelInfer(at_gate(pipe))
    await until(lambda: gate.statistics().queued == 1)

    code, _ = await refused(stub.ModelInfer(at_gate(pipe)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED

    second.cancel()
    await until(lambda: gate.statistics().queued == 0)
    pipe.open("w").close()
    assert (await first).raw_output_contents[0][4:] == b"open"


# --- the model repository -------------------------------------------------------------------------


async def test_index_load_and_unload(store: Path) -> None:
    serving = Serving(store)
    await serving.start([])
    stub = serving.oip()
    try:
        assert not (await stub.ServerReady(pb.ServerReadyRequest())).ready
        loaded = await stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="echo"))
        assert (loaded.model_name, loaded.isLoaded) == ("echo", True)
        triton = pb.RepositoryModelLoadRequest(triton_model_name="mirror")
        assert (await stub.RepositoryModelLoad(triton)).isLoaded
        broken = pb.RepositoryModelLoadRequest(model_name="broken")
        assert (await refused(stub.RepositoryModelLoad(broken)))[0] is grpc.StatusCode.UNAVAILABLE

        index = await stub.RepositoryIndex(pb.RepositoryIndexRequest())
        assert [(entry.name, entry.version, entry.state) for entry in index.models] == [
            ("broken", "1.0", "UNAVAILABLE"),
            ("echo", "1.0", "READY"),
            ("mirror", "1.0", "READY"),
        ]
        assert "no such thing" in index.models[0].reason
        ready = await stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
        assert [entry.name for entry in ready.models] == ["echo", "mirror"]
        assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
        code, text = await refused(stub.ModelInfer(infer("broken", ("INT8", [1]))))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "no such thing" in text

        gone = await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="echo"))
        assert (gone.model_name, gone.isUnloaded) == ("echo", True)
        code, _ = await refused(stub.ModelInfer(infer("echo", ("INT8", [1]))))
        assert code is grpc.StatusCode.NOT_FOUND
    finally:
        await serving.stop()


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
async def test_repository_calls_that_cannot_be(serving: Serving, method: str) -> None:
    message = getattr(pb, f"{method}Request")
    call = getattr(serving.oip(), method)
    assert (await refused(call(message(model_name="nobody"))))[0] is grpc.StatusCode.NOT_FOUND
    assert (await refused(call(message())))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_load_goes_on_when_its_client_has_left(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    source = f"""
class Slow:
    def initialize(self, context):
        open({str(tmp_path / "pipe")!r}).close()
    def handle(self, data, context):
        return data
"""
    write_archive(tmp_path / "store", "slow", source)
    serving = Serving(tmp_path / "store")
    await serving.start([])
    stub = serving.oip()
    call = stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="slow"))
    await until(lambda: serving.registry.names() == ["slow"])
    call.cancel()
    await stub.ServerLive(pb.ServerLiveRequest())  # comes after the end of that call
    assert not serving.registry.ready()
    await asyncio.to_thread(lambda: (tmp_path / "pipe").open("w").close())
    await until(serving.registry.ready)
    await serving.stop()


async def test_large_messages_are_read_aside(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers(monkeypatch)
    await serving.oip().ModelInfer(infer("echo", ("FP32", [1.0])))
    assert readers.works == ["decode"]


async def test_large_answers_are_written_aside(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Readers(monkeypatch)
    await serving.oip().ModelInfer(infer("echo", ("BYTES", [b"a", b"b"])))
    assert readers.works == ["decode", "Exchange.serialize"]
