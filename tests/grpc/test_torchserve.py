import io
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import torch
from google.protobuf.empty_pb2 import Empty

from kserve_torch.grpc import torchserve
from kserve_torch.grpc.protos import inference_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.models.registry import Registry

from .serving import Serving, refused


def native(serving: Serving) -> Any:
    return serving.stub(torchserve.SERVICE, serving.settings.grpc_inference_port)


def predict(model: str, sequence: str | None = None, **fields: bytes) -> pb.PredictionsRequest:
    request = pb.PredictionsRequest(model_name=model, input=fields)
    if sequence is not None:
        request.sequence_id = sequence
    return request


async def test_ping(serving: Serving) -> None:
    response = await native(serving).Ping(Empty())
    assert json.loads(response.health) == {"status": "Healthy"}


async def test_ping_while_the_server_drains(serving: Serving) -> None:
    registry = Registry(serving.settings)
    registry.draining = True
    servicer = torchserve.TorchServeInference(registry, serving.settings, 1000)
    response = await servicer.Ping(Empty(), Call())
    assert json.loads(response.health) == {"status": "Unhealthy"}
    await registry.close()


async def test_input_map_is_one_row_of_bytearrays(serving: Serving) -> None:
    request = predict("mirror", data=b"\x01", target=b"7")
    response = await native(serving).Predictions(request, metadata=(("x-tenant", "blue"),))
    said = json.loads(response.prediction)
    assert said["row"] == {
        "data": ["bytearray", "bytearray(b'\\x01')"],
        "target": ["bytearray", "bytearray(b'7')"],
    }
    assert said["headers"]["x-tenant"] == "blue"
    assert said["headers"]["data"] == "{'content-type': ''}"


async def test_the_log_has_the_request_as_it_was_read(serving: Serving) -> None:
    serving.events.clear()
    await native(serving).Predictions(predict("mirror", data=b"1"))
    (event,) = serving.responses()
    assert (event.rows, event.status, event.model) == (1, 200, "mirror")
    assert event.request_id


async def test_rows_can_be_made_anew(serving: Serving) -> None:
    message = predict("mirror", data=b"1")
    servicer = torchserve.TorchServeInference(serving.registry, serving.settings, 1000)
    _, request = servicer._read(message, Call())
    request.rows[0]["data"].clear()
    assert request.again is not None
    assert request.again() == [{"data": bytearray(b"1")}]


async def test_version_can_be_named(serving: Serving) -> None:
    serving.events.clear()
    request = predict("mirror", data=b"1")
    assert (await native(serving).Predictions(request)).prediction
    request.model_version = "1.0"
    assert (await native(serving).Predictions(request)).prediction
    assert serving.versions_asked_for() == ["", "1.0"]  # metrics tell them apart
    request.model_version = "9"
    assert (await refused(native(serving).Predictions(request)))[0] is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("model", "said", "code"),
    [
        ("nobody", b"", grpc.StatusCode.NOT_FOUND),
        ("", b"", grpc.StatusCode.INVALID_ARGUMENT),
        ("moody", b"400 odd", grpc.StatusCode.INVALID_ARGUMENT),
        ("moody", b"404 half a pair: \xed\xa0\x80", grpc.StatusCode.NOT_FOUND),
        ("moody", b"status kettle", grpc.StatusCode.INVALID_ARGUMENT),
        ("moody", b"crash", grpc.StatusCode.INTERNAL),
    ],
)
async def test_errors(serving: Serving, model: str, said: bytes, code: grpc.StatusCode) -> None:
    got, text = await refused(native(serving).Predictions(predict(model, data=said)))
    assert got is code
    assert text
    assert "Traceback" not in text


async def test_stream_of_intermediate_results(serving: Serving) -> None:
    serving.events.clear()
    request = predict("words", data=b"one two three")
    responses = [r.prediction async for r in native(serving).StreamPredictions(request)]
    assert responses == [b"one", b"two", b"three"]
    assert [event.timing.batch_rows for event in serving.responses()] == [1]


async def test_a_stream_in_an_envelope_ends_with_the_whole_answer(store: Any) -> None:
    serving = Serving(store, service_envelope="kserve")
    await serving.start(["tells"])
    try:
        request = predict("tells", body=b'{"instances": [{"data": 1}, {"data": 2}]}')
        responses = [r.prediction async for r in native(serving).StreamPredictions(request)]
        assert responses == [b"1", b"2", b"2", b'{"predictions":[1,2]}']
        assert (await native(serving).Predictions(request)).prediction == responses[-1]
    finally:
        await serving.stop()


async def test_a_refused_request_is_reported_with_its_headers_to_who_asks_for_them(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, parent = native(serving), (("traceparent", "00-1-2-01"),)
    monkeypatch.setattr(serving.registry.observers, "want_headers", True)
    serving.events.clear()
    await refused(stub.Predictions(predict("nobody"), metadata=parent))
    await refused(stub.StreamPredictions(predict("nobody"), metadata=parent).read())
    assert [event.headers["traceparent"] for event in serving.responses()] == ["00-1-2-01"] * 2


async def test_a_stream_that_fails_half_way(serving: Serving) -> None:
    serving.events.clear()
    stream = native(serving).StreamPredictions(predict("words", data=b"a crash"))
    assert (await stream.read()).prediction == b"a"
    assert (await refused(stream.read()))[0] is grpc.StatusCode.INTERNAL
    (event,) = serving.responses()
    assert (event.timing.batch_rows, event.error) == (1, "HandlerError")


async def test_a_stream_whose_first_result_is_an_error(serving: Serving) -> None:
    stream = native(serving).StreamPredictions(predict("refuses", data=b"a"))
    assert (await refused(stream.read()))[0] is grpc.StatusCode.NOT_FOUND


async def test_a_stream_that_the_client_cannot_be_sent(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is wrong with the server, so its log has no error."""
    serving = Serving(store, max_response_size=100)
    await serving.start(["words"])
    stream = native(serving).StreamPredictions(predict("words", data=b"one " + b"x" * 200))
    assert (await stream.read()).prediction == b"one"
    whole, part = predict("words", data=b"x" * 200), predict("words", data=b"x" * 200 + b" one")
    others = native(serving).Predictions(whole), native(serving).StreamPredictions(part).read()
    for call in (stream.read(), *others):
        assert (await refused(call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [event.status for event in serving.responses()] == [500] * 3
    await serving.stop()
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


async def test_sequences_in_both_directions(serving: Serving) -> None:
    requests = [
        predict("mirror", "s1", data=b"1"),
        predict("mirror", "s1", data=b"2"),
        predict("nobody", "s1", data=b"3"),
        predict("mirror", data=b"4"),
        predict("words", "s2", data=b"five six"),
    ]
    responses = [r async for r in native(serving).StreamPredictions2(iter(requests))]
    first, second = (json.loads(r.prediction)["headers"] for r in responses[:2])
    assert first["ts_request_sequence_id"] == second["ts_request_sequence_id"] == "s1"
    assert "ts_request_sequence_start" in first
    assert "ts_request_sequence_start" not in second
    assert [r.status.code for r in responses] == [0, 0, 5, 3, 0, 0]
    assert "nobody" in responses[2].status.message
    assert responses[3].status.message == "Parameter sequenceId is required."
    assert [r.prediction for r in responses[4:]] == [b"five", b"six"]
    assert [r.sequence_id for r in responses] == ["s1", "s1", "s1", "", "s2", "s2"]


def test_clients_may_use_stubs_of_torchserves_own_files() -> None:
    """Fields that clients set have TorchServe 0.12's names and numbers."""
    names = {field.name: field.number for field in pb.PredictionsRequest.DESCRIPTOR.fields}
    assert names == {"model_name": 1, "model_version": 2, "input": 3, "sequence_id": 4}
    names = {field.name: field.number for field in pb.PredictionResponse.DESCRIPTOR.fields}
    assert names == {"prediction": 1, "sequence_id": 2, "status": 3}


async def test_a_single_request_of_a_sequence(serving: Serving) -> None:
    request = predict("mirror", "s1", data=b"1")
    whole = await native(serving).Predictions(request)
    [part] = [response async for response in native(serving).StreamPredictions(request)]
    for response in (whole, part):
        headers = json.loads(response.prediction)["headers"]
        assert headers["ts_request_sequence_id"] == "s1"
        assert "ts_request_sequence_start" not in headers
    request = predict("mirror", data=b"1")
    named = native(serving).Predictions(request, metadata=[("ts_request_sequence_id", "s2")])
    headers = json.loads((await named).prediction)["headers"]
    assert headers["ts_request_sequence_id"] == "s2"


async def test_a_stream_keeps_none_of_its_sequences_ids(serving: Serving) -> None:
    async def messages() -> AsyncIterator[pb.PredictionsRequest]:
        for number in range(20):
            yield predict("nobody", f"{number}" + 1_000_000 * "x")

    registry = Registry(serving.settings)
    servicer = torchserve.TorchServeInference(registry, serving.settings, 1000)
    tracemalloc.start()
    async for response in servicer.StreamPredictions2(messages(), Call()):
        assert isinstance(response, pb.PredictionResponse)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
    await registry.close()


async def test_envelope_of_the_settings(store: Any) -> None:
    serving = Serving(store, service_envelope="json")
    await serving.start(["mirror"])
    try:
        request = predict("mirror", body=b'{"instances": [{"data": 1}, {"data": 2}]}')
        said = json.loads((await native(serving).Predictions(request)).prediction)
        assert len(said["predictions"]) == 2
        code, text = await refused(native(serving).Predictions(predict("mirror", body=b"{}")))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "instances" in text
    finally:
        await serving.stop()


async def test_tensors_are_sent_as_torch_saves_them(serving: Serving) -> None:
    response = await native(serving).Predictions(predict("tensor", data=b"3"))
    assert torch.equal(torch.load(io.BytesIO(response.prediction)), torch.arange(3.0))
