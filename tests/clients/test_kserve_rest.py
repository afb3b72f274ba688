"""kserve's own REST client, on v1 and v2."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from kserve import InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from ..server import Server
from .values import TYPED, VALUES

#: kserve has no BF16.
KNOWN = [datatype for datatype in VALUES if datatype != "BF16"]


@pytest.fixture
async def v1() -> AsyncIterator[InferenceRESTClient]:
    client = InferenceRESTClient(RESTConfig(protocol="v1", retries=0))
    yield client
    await client.close()


@pytest.fixture
async def v2() -> AsyncIterator[InferenceRESTClient]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    yield client
    await client.close()


def tensor(datatype: str, values: Any, *, binary: bool) -> InferInput:
    made = InferInput("x", list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


async def test_v1(server: Server, v1: InferenceRESTClient) -> None:
    assert await v1.is_model_ready(server.url, "identity")
    instances = [[1, 2.5, "a"], {"data": None}]
    answer = await v1.infer(server.url, {"instances": instances}, "identity")
    assert answer == {"predictions": instances}


async def test_v1_explain(server: Server, v1: InferenceRESTClient) -> None:
    answer = await v1.explain(server.url, "why", {"instances": [{"data": 1}]})
    assert answer == {"explanations": ["why 1"]}


async def test_v2_health(server: Server, v2: InferenceRESTClient) -> None:
    assert await v2.is_server_live(server.url)
    assert await v2.is_server_ready(server.url)
    assert await v2.is_model_ready(server.url, "identity")
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        await v2.infer(server.url, {"inputs": []}, "nobody")


@pytest.mark.parametrize("datatype", KNOWN)
async def test_each_datatype_in_binary(
    server: Server, v2: InferenceRESTClient, datatype: str
) -> None:
    inputs = [tensor(datatype, VALUES[datatype], binary=True)]
    outputs = [RequestedOutput("x", {"binary_data": True})]
    request = InferRequest("identity", inputs, request_outputs=outputs)
    response = await v2.infer(server.url, request, "identity")
    assert response.outputs[0].datatype == datatype
    expected = VALUES[datatype].tolist()
    if datatype == "BYTES":  # kserve reads what is UTF-8 as text
        expected = [[element.decode() for element in row] for row in expected]
    assert response.outputs[0].as_numpy().tolist() == expected


@pytest.mark.parametrize("others", [0, 1])
async def test_an_empty_tensor_in_binary(
    server: Server, v2: InferenceRESTClient, others: int
) -> None:
    inputs = [tensor("FP32", np.zeros((0, 3), np.float32), binary=True)]
    other = InferInput("other", [1], "INT8")
    other.set_data_from_numpy(np.ones(1, np.int8), binary_data=True)
    request = InferRequest("identity", [*inputs, *[other] * others])
    response = await v2.infer(server.url, request, "identity")
    assert [output.as_numpy().shape for output in response.outputs] == [(0, 3), (1,)][: 1 + others]


@pytest.mark.parametrize("datatype", [name for name in TYPED if name != "BYTES"])
async def test_each_datatype_in_json(
    server: Server, v2: InferenceRESTClient, datatype: str
) -> None:
    inputs = [tensor(datatype, VALUES[datatype], binary=False)]
    response = await v2.infer(server.url, InferRequest("identity", inputs), "identity")
    (output,) = response.outputs
    assert (output.name, output.datatype, output.shape) == ("x", datatype, [2, 3])
    assert output.as_numpy().tolist() == VALUES[datatype].tolist()


async def test_text_in_json(server: Server, v2: InferenceRESTClient) -> None:
    inputs = [InferInput("x", [2], "BYTES", data=["a", "café"])]
    response = await v2.infer(server.url, InferRequest("identity", inputs), "identity")
    assert response.outputs[0].data == ["a", "café"]


async def test_ids_parameters_and_headers(server: Server, v2: InferenceRESTClient) -> None:
    inputs = [InferInput("x", [1], "BYTES", data=["flavour"])]
    request = InferRequest("headers", inputs, request_id="seven", parameters={"flavour": "sour"})
    headers: dict[str, str] = {}
    response = await v2.infer(server.url, request, "headers", response_headers=headers)
    assert (response.id, response.model_name) == ("seven", "headers")
    assert response.outputs[0].data == ["sour"]
    assert response.parameters == {"x-asked-for": "flavour"}
    assert headers["x-asked-for"] == "flavour"


async def test_outputs(server: Server, v2: InferenceRESTClient) -> None:
    inputs = [tensor("FP32", np.ones((1, 3), np.float32), binary=False)]
    request = InferRequest("named", inputs, request_outputs=[RequestedOutput("total")])
    response = await v2.infer(server.url, request, "named")
    assert [output.name for output in response.outputs] == ["total"]
    assert response.outputs[0].as_numpy().tolist() == [[3.0]]
