"""tritonclient's gRPC client against the server in ``TRITON_GRPC``; run by test_tritonclient."""

import os
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import (
    InferenceServerClient,
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
)
from tritonclient.utils import triton_to_np_dtype

from .values import VALUES


@pytest.fixture(scope="module")
def client() -> Iterator[InferenceServerClient]:
    client = InferenceServerClient(os.environ["TRITON_GRPC"])
    yield client
    client.close()


def tensor(values: Any, datatype: str = "FP32", *, name: str = "x") -> InferInput:
    array = np.asarray(values, triton_to_np_dtype(datatype))
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def text(value: str) -> InferInput:
    return tensor(np.array([value.encode()], object), "BYTES")


def refused(call: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **kwargs)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def test_health(client: InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity")
    assert client.is_model_ready("identity", "2")
    assert refused(client.is_model_ready, "identity", "3")[0] == "NOT_FOUND"
    assert refused(client.is_model_ready, "nobody")[0] == "NOT_FOUND"


def test_metadata(client: InferenceServerClient) -> None:
    server = client.get_server_metadata()
    assert server.name == "kserve_torch"
    assert {"binary_tensor_data", "model_repository"} <= set(server.extensions)
    model = client.get_model_metadata("named")
    assert (model.inputs[0].name, model.inputs[0].datatype) == ("x", "FP32")
    assert list(model.inputs[0].shape) == [-1, 3]
    assert client.get_model_metadata("identity", as_json=True)["versions"] == ["1", "2"]


@pytest.mark.parametrize("datatype", VALUES)
def test_each_datatype(client: InferenceServerClient, datatype: str) -> None:
    result = client.infer("identity", [tensor(VALUES[datatype], datatype)])
    assert result.get_output("x").datatype == datatype
    assert result.as_numpy("x").tolist() == VALUES[datatype].tolist()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed(client: InferenceServerClient, coding: str) -> None:
    inputs = [tensor(VALUES["FP32"]), tensor(VALUES["BYTES"], "BYTES", name="y")]
    result = client.infer("identity", inputs, compression_algorithm=coding)
    assert result.as_numpy("x").tolist() == VALUES["FP32"].tolist()
    assert result.as_numpy("y").tolist() == VALUES["BYTES"].tolist()


def test_outputs(client: InferenceServerClient) -> None:
    wanted = [InferRequestedOutput("total"), InferRequestedOutput("doubled")]
    result = client.infer("named", [tensor(VALUES["FP32"])], outputs=wanted)
    assert [output.name for output in result.get_response().outputs] == ["total", "doubled"]
    assert result.as_numpy("doubled").tolist() == (VALUES["FP32"] * 2).tolist()
    assert refused(
        client.infer, "named", [tensor([1.0])], outputs=[InferRequestedOutput("other")]
    ) == ("INVALID_ARGUMENT", 'outputs[0]: no output "other", there is doubled, total')


def test_ids_and_versions(client: InferenceServerClient) -> None:
    response = client.infer("identity", [tensor([1.0])], "1", request_id="seven").get_response()
    assert response.id == "seven"
    assert (response.model_name, response.model_version) == ("identity", "1")
    assert client.infer("identity", [tensor([1.0])]).get_response().model_version in ("1", "2")
    assert refused(client.infer, "identity", [tensor([1.0])], "3")[0] == "NOT_FOUND"


def test_parameters(client: InferenceServerClient) -> None:
    result = client.infer("headers", [text("flavour")], parameters={"flavour": "sour"})
    assert result.as_numpy("x").tolist() == [b"sour"]
    assert result.get_response().parameters["x-asked-for"].string_param == "flavour"


def test_headers(client: InferenceServerClient) -> None:
    result = client.infer("headers", [text("x-flavour")], headers={"x-flavour": "sweet"})
    assert result.as_numpy("x").tolist() == [b"sweet"]


def test_errors(client: InferenceServerClient) -> None:
    assert refused(client.infer, "nobody", [tensor([1.0])])[0] == "NOT_FOUND"
    status, message = refused(client.infer, "moody", [text("crash")])
    assert (status, "no bananas left" in message, "File" in message) == ("INTERNAL", True, False)
    assert refused(client.infer, "moody", [text("404")]) == ("NOT_FOUND", "as you wish")
    wrong = tensor([1.0, 2.0])
    wrong.set_shape([3])
    assert refused(client.infer, "identity", [wrong]) == (
        "INVALID_ARGUMENT",
        'inputs[0] "x".data: 2 elements, shape [3] needs 3',
    )


def test_explain(client: InferenceServerClient) -> None:
    result = client.infer("why", [tensor([1], "INT8")], parameters={"verb": "explain"})
    assert result.as_numpy("x").tolist() == [b"why [1]"]


def test_streams(client: InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for i in range(3):
        client.async_stream_infer("identity", [tensor([i], "INT64")], request_id=str(i))
    client.async_stream_infer("nobody", [tensor([1.0])])
    received = [answers.get(timeout=20) for _ in range(4)]
    client.stop_stream()
    assert [result.as_numpy("x").tolist() for result, _ in received[:3]] == [[0], [1], [2]]
    assert "nobody" in received[3][1].message()


def test_time_out(client: InferenceServerClient) -> None:
    status, _ = refused(client.infer, "moody", [text("late")], client_timeout=0.1)
    assert status == "DEADLINE_EXCEEDED"


def test_the_model_repository(client: InferenceServerClient) -> None:
    client.load_model("extra")
    assert client.is_model_ready("extra")
    index = client.get_model_repository_index()
    assert {entry.name: entry.state for entry in index.models}["extra"] == "READY"
    client.unload_model("extra")
    assert refused(client.is_model_ready, "extra")[0] == "NOT_FOUND"
    assert refused(client.unload_model, "extra")[0] == "NOT_FOUND"
    assert refused(client.load_model, "nobody")[0] == "NOT_FOUND"
    status, message = refused(client.load_model, "broken")
    assert status == "UNAVAILABLE"
    assert "no such thing" in message
    client.unload_model("broken")


@pytest.mark.parametrize("method", ["get_inference_statistics", "get_trace_settings"])
def test_what_only_triton_has(client: InferenceServerClient, method: str) -> None:
    assert refused(getattr(client, method))[0] == "UNIMPLEMENTED"
