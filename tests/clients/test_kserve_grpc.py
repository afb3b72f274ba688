"""kserve's own gRPC client, and the health and reflection clients of gRPC."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.infer_type import RequestedOutput

from ..server import Server
from .values import TYPED, VALUES

KNOWN = [datatype for datatype in VALUES if datatype != "BF16"]


@pytest.fixture
async def client(server: Server) -> AsyncIterator[InferenceGRPCClient]:
    client = InferenceGRPCClient(f"127.0.0.1:{server.ports['grpc']}", retries=0)
    yield client
    await client.close()


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.ports['grpc']}") as channel:
        yield channel


def tensor(datatype: str, values: Any, *, raw: bool, name: str = "x") -> InferInput:
    made = InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=raw)
    return made


async def test_health(client: InferenceGRPCClient) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("identity")
    with pytest.raises(grpc.RpcError) as caught:
        await client.is_model_ready("nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("datatype", KNOWN)
async def test_each_datatype_raw(client: InferenceGRPCClient, datatype: str) -> None:
    inputs = [tensor(datatype, VALUES[datatype], raw=True)]
    response = await client.infer(InferRequest("identity", inputs))
    assert response.outputs[0].datatype == datatype
    assert response.outputs[0].as_numpy().tolist() == VALUES[datatype].tolist()


@pytest.mark.parametrize("datatype", TYPED)
async def test_each_datatype_typed(client: InferenceGRPCClient, datatype: str) -> None:
    inputs = [tensor(datatype, VALUES[datatype], raw=False)]
    response = await client.infer(InferRequest("identity", inputs))
    (output,) = response.outputs
    assert (output.name, output.datatype, output.shape) == ("x", datatype, [2, 3])
    assert output.as_numpy().reshape(2, 3).tolist() == VALUES[datatype].tolist()


async def test_a_raw_image_in_a_shape_without_dimensions(client: InferenceGRPCClient) -> None:
    """KServe's own end-to-end test of TorchServe sends this (CONTRACT Q9)."""
    image = InferInput("x", [], "BYTES", data=[b"\x89PNG"])
    (output,) = (await client.infer(InferRequest("why", [image]))).outputs
    assert output.data == [rb"what bytearray(b'\x89PNG')"]


async def test_ids_parameters_and_headers(client: InferenceGRPCClient) -> None:
    inputs = [InferInput("x", [1], "BYTES", data=[b"flavour"])]
    request = InferRequest("headers", inputs, request_id="seven", parameters={"flavour": "sour"})
    response = await client.infer(request)
    assert (response.id, response.model_name, response.model_version) == ("seven", "headers", "1.0")
    assert response.outputs[0].data == [b"sour"]
    assert response.parameters["x-asked-for"].string_param == "flavour"
    request = InferRequest("headers", [InferInput("x", [1], "BYTES", data=[b"x-flavour"])])
    response = await client.infer(request, headers=[("x-flavour", "sweet")])
    assert response.outputs[0].data == [b"sweet"]


async def test_outputs(client: InferenceGRPCClient) -> None:
    inputs = [tensor("FP32", np.ones((1, 3), np.float32), raw=True)]
    request = InferRequest("named", inputs, request_outputs=[RequestedOutput("total")])
    response = await client.infer(request)
    assert [output.name for output in response.outputs] == ["total"]
    assert response.outputs[0].as_numpy().tolist() == [[3.0]]
