"""kserve's own gRPC client, whose messages are generated from another file than ours."""

from collections.abc import AsyncIterator

import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferInput, InferRequest

from .serving import Serving


@pytest.fixture
async def client(serving: Serving) -> AsyncIterator[InferenceGRPCClient]:
    client = InferenceGRPCClient(f"127.0.0.1:{serving.settings.grpc_port}")
    yield client
    await client.close()


async def test_health(client: InferenceGRPCClient) -> None:
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("echo")


@pytest.mark.parametrize("raw", [True, False])
async def test_infer(client: InferenceGRPCClient, raw: bool) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = InferInput("x", [2, 3], "FP32")
    tensor.set_data_from_numpy(values, binary_data=raw)
    request = InferRequest("echo", [tensor], request_id="7")
    response = await client.infer(request)
    assert (response.id, response.model_name, response.model_version) == ("7", "echo", "1.0")
    assert response.outputs[0].as_numpy().tolist() == values.tolist()


async def test_a_raw_image_in_a_shape_without_dimensions(client: InferenceGRPCClient) -> None:
    """KServe's own end-to-end test of TorchServe sends this (CONTRACT Q9)."""
    tensor = InferInput("x", [], "BYTES", data=[b"\x89PNG"])
    response = await client.infer(InferRequest("mirror", [tensor]))
    assert "bytearray(b'\\\\x89PNG')" in response.outputs[0].data[0].decode()
