"""What the SDK's own conversions lose or refuse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kserve import InferInput, InferRequest

from kserve_torch.codec.v2 import V2Request
from kserve_torch.errors import InvalidInput
from kserve_torch.messages import Tensor
from kserve_torch.sdk.infer_types import decode, encode


def halves() -> InferRequest:
    """As the SDK reads binary FP16 data."""
    parameters = {"binary_data_size": 4, "unit": "m"}
    return InferRequest("m", [InferInput("x", [2], "FP16", [0.5, 2.0], parameters)])


def test_binary_data_of_halves_that_was_read_already() -> None:
    [read] = decode(halves()).inputs
    assert read.array.tolist() == [0.5, 2.0]
    assert (read.array.dtype, read.parameters) == (np.float16, {"unit": "m"})


def test_halves_in_contents_are_refused() -> None:
    request = halves()
    request.from_grpc = True
    request.inputs[0]._parameters = {}
    with pytest.raises(InvalidInput, match="FP16 goes in raw_input_contents only"):
        decode(request)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("datatype", "array", "data"),
    [
        ("BF16", np.array([0x3F80], np.uint16), [1.0]),
        ("BYTES", np.array(["é", b"b"], object), ["é", "b"]),
    ],
)
def test_outputs_over_rest(
    datatype: str, array: np.ndarray, data: list[object], binary: bool
) -> None:
    output = Tensor(name="y", datatype=datatype, array=array, parameters={"unit": "m"})
    request = V2Request(inputs=[], binary_output=binary)
    response = encode("m", None, "1", [output], request, {"k": "v"}, from_grpc=False)
    body, length = response.to_rest()
    answer = json.loads(body[:length]) if isinstance(body, bytes) else body
    [sent] = answer["outputs"]
    assert answer["parameters"] == {"k": "v"}
    assert sent["parameters"]["unit"] == "m"
    assert sent.get("data", data) == data
