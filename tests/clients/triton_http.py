"""tritonclient's HTTP client against the server in ``TRITON_HTTP``; run by test_tritonclient."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.http import (
    InferenceServerClient,
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
)
from tritonclient.utils import triton_to_np_dtype

from .values import TYPED, VALUES


@pytest.fixture(scope="module")
def client() -> Iterator[InferenceServerClient]:
    client = InferenceServerClient(os.environ["TRITON_HTTP"])
    yield client
    client.close()


def tensor(
    values: Any, datatype: str = "FP32", *, name: str = "x", binary: bool = True
) -> InferInput:
    array = np.asarray(values, triton_to_np_dtype(datatype))
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def text(value: str) -> InferInput:
    return tensor(np.array([value.encode()], object), "BYTES")


def refused(call: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        call(*args, **kwargs)
    return caught.value.status(), caught.value.message()


def test_health(client: InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("identity")
    assert client.is_model_ready("identity", "2")
    assert not client.is_model_ready("identity", "3")
    assert not client.is_model_ready("nobody")


def test_metadata(client: InferenceServerClient) -> None:
    server = client.get_server_metadata()
    assert server["name"] == "kserve_torch"
    assert {"binary_tensor_data", "model_repository"} <= set(server["extensions"])
    model = client.get_model_metadata("named")
    assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    assert model["outputs"] == [{"name": "doubled", "datatype": "FP32", "shape": [-1, 3]}]
    assert client.get_model_metadata("identity")["versions"] == ["1", "2"]
    assert refused(client.get_model_metadata, "nobody")[0] == "404"


@pytest.mark.parametrize("datatype", VALUES)
def test_each_datatype_in_binary(client: InferenceServerClient, datatype: str) -> None:
    result = client.infer("identity", [tensor(VALUES[datatype], datatype)])
    assert result.get_output("x")["datatype"] == datatype
    assert result.as_numpy("x").tolist() == VALUES[datatype].tolist()


@pytest.mark.parametrize("into", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("out_of", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("datatype", [name for name in TYPED if name != "BYTES"])
def test_each_datatype_in_each_form(
    client: InferenceServerClient, datatype: str, into: bool, out_of: bool
) -> None:
    wanted = [InferRequestedOutput("x", binary_data=out_of)]
    given = [tensor(VALUES[datatype], datatype, binary=into)]
    result = client.infer("identity", given, outputs=wanted)
    assert ("data" in result.get_output("x")) is not out_of
    assert result.as_numpy("x").dtype == VALUES[datatype].dtype
    assert result.as_numpy("x").tolist() == VALUES[datatype].tolist()


def test_text_in_json(client: InferenceServerClient) -> None:
    words = np.array([["a", "café"]], object)
    wanted = [InferRequestedOutput("x", binary_data=False)]
    result = client.infer("identity", [tensor(words, "BYTES", binary=False)], outputs=wanted)
    assert result.get_output("x")["data"] == ["a", "café"]
    assert result.as_numpy("x").shape == (1, 2)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_in_json_is_single(client: InferenceServerClient, datatype: str) -> None:
    wanted = [InferRequestedOutput("x", binary_data=False)]
    result = client.infer("identity", [tensor(VALUES[datatype], datatype)], outputs=wanted)
    assert result.get_output("x")["datatype"] == "FP32"
    assert result.as_numpy("x").tolist() == VALUES[datatype].tolist()


def test_several_tensors_in_both_forms(client: InferenceServerClient) -> None:
    inputs = [
        tensor(VALUES["FP32"], name="a"),
        tensor(VALUES["INT8"], "INT8", name="b", binary=False),
        tensor(VALUES["BYTES"], "BYTES", name="c"),
    ]
    wanted = [InferRequestedOutput("c"), InferRequestedOutput("a", binary_data=False)]
    result = client.infer("identity", inputs, outputs=wanted)
    assert [output["name"] for output in result.get_response()["outputs"]] == ["c", "a"]
    assert result.as_numpy("a").tolist() == VALUES["FP32"].tolist()
    assert result.as_numpy("c").tolist() == VALUES["BYTES"].tolist()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed(client: InferenceServerClient, coding: str) -> None:
    inputs = [tensor(VALUES["FP32"]), tensor(VALUES["BYTES"], "BYTES", name="y")]
    result = client.infer(
        "identity",
        inputs,
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
    )
    assert result.as_numpy("x").tolist() == VALUES["FP32"].tolist()
    assert result.as_numpy("y").tolist() == VALUES["BYTES"].tolist()


def test_several_requests_at_once(client: InferenceServerClient) -> None:
    waiting = [client.async_infer("identity", [tensor([i], "INT64")]) for i in range(20)]
    assert [one.get_result().as_numpy("x").tolist() for one in waiting] == [[i] for i in range(20)]


def test_named_outputs(client: InferenceServerClient) -> None:
    result = client.infer("named", [tensor(VALUES["INT32"] // 4, "INT32")])
    assert result.as_numpy("doubled").tolist() == (VALUES["INT32"] // 4 * 2).tolist()
    assert result.as_numpy("total").shape == (1, 1)
    status, message = refused(
        client.infer, "named", [tensor([1.0])], outputs=[InferRequestedOutput("other")]
    )
    assert (status, message) == ("400", 'outputs[0]: no output "other", there is doubled, total')


def test_ids_and_versions(client: InferenceServerClient) -> None:
    response = client.infer("identity", [tensor([1.0])], "1", request_id="seven").get_response()
    assert response["id"] == "seven"
    assert (response["model_name"], response["model_version"]) == ("identity", "1")
    response = client.infer("identity", [tensor([1.0])]).get_response()
    assert response["model_version"] in ("1", "2")
    assert refused(client.infer, "identity", [tensor([1.0])], "3")[0] == "404"


def test_parameters(client: InferenceServerClient) -> None:
    result = client.infer("headers", [text("flavour")], parameters={"flavour": "sour"})
    assert result.as_numpy("x").tolist() == [b"sour"]
    assert result.get_response()["parameters"] == {"x-asked-for": "flavour"}


def test_headers(client: InferenceServerClient) -> None:
    result = client.infer("headers", [text("x-flavour")], headers={"X-Flavour": "sweet"})
    assert result.as_numpy("x").tolist() == [b"sweet"]


def test_errors(client: InferenceServerClient) -> None:
    assert refused(client.infer, "nobody", [tensor([1.0])])[0] == "404"
    status, message = refused(client.infer, "moody", [text("crash")])
    assert (status, "no bananas left" in message, "File" in message) == ("500", True, False)
    assert refused(client.infer, "moody", [text("418")]) == ("418", "as you wish")
    wrong = tensor([1.0, 2.0])
    wrong.set_shape([3])
    status, message = refused(client.infer, "identity", [wrong])
    assert (status, message) == ("400", 'inputs[0] "x".data: 2 elements, shape [3] needs 3')


def test_the_model_repository(client: InferenceServerClient) -> None:
    assert not client.is_model_ready("extra")
    client.load_model("extra")
    assert client.is_model_ready("extra")
    client.load_model("extra")
    entries = {entry["name"]: entry for entry in client.get_model_repository_index()}
    assert entries["extra"]["state"] == "READY"
    client.unload_model("extra")
    assert not client.is_model_ready("extra")
    assert refused(client.infer, "extra", [tensor([1.0])])[0] == "404"
    assert refused(client.unload_model, "extra")[0] == "404"
    assert refused(client.load_model, "nobody")[0] == "404"


def test_a_model_that_cannot_be_loaded(client: InferenceServerClient) -> None:
    status, message = refused(client.load_model, "broken")
    assert status == "503"
    assert "no such thing" in message
    entries = {entry["name"]: entry for entry in client.get_model_repository_index()}
    assert entries["broken"]["state"] == "UNAVAILABLE"
    assert "no such thing" in entries["broken"]["reason"]
    assert client.is_server_ready()  # it is not configured, so only its own clients miss it
    client.unload_model("broken")
