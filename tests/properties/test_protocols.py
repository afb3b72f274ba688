"""What must hold for any request: tensors survive every form, batching never shows in an answer.

The registry, its workers and the endpoints are real; only the sockets are left out.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kserve_torch.codec import buffers, tensors
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.grpc.oip import OpenInference
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.grpc.rpc import Call as Rpc
from kserve_torch.http.call import Answer, Call, headers_of
from kserve_torch.http.v1 import V1
from kserve_torch.http.v2 import HEADER_LENGTH, V2
from kserve_torch.messages import Tensor
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings

from ..clients.models import IDENTITY
from ..makers import make_archive

T = TypeVar("T")
Array = np.ndarray[Any, Any]

#: Answers each row with something of its own, but only in batches without a row that says "poison":
#: a word that is longer than those of `INSTANCES`.
PICKY = """
from ts.utils.util import PredictionException


def handle(data, context):
    if data is None:
        return None
    if "poison" in data:
        raise PredictionException("poison", 418)
    return [[row, len(str(row))] for row in data]
"""


@dataclass
class Serving:
    """A registry on the event loop of a thread of its own, and endpoints on it."""

    registry: Registry
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    async def _posted(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        v2 = V2(self.registry)
        call = Call(method="POST", path=path, body=body, headers=headers_of(raw))
        answer = await V1(self.registry, v2).route(call) or await v2.route(call)
        assert answer is not None
        return answer

    def post(self, path: str, body: bytes, **headers: str) -> tuple[Answer, bytes]:
        answer = self.run(self._posted(path, body, headers))
        assert isinstance(answer.body, bytes)
        return answer, answer.body

    def predict(self, *parts: Sequence[Any]) -> list[tuple[int, Any]]:
        """Status and answer of each part's request; all are sent at once."""

        async def all_at_once() -> list[Answer]:
            bodies = [json.dumps({"instances": list(part)}).encode() for part in parts]
            path = "/v1/models/picky:predict"
            return await asyncio.gather(*(self._posted(path, body, {}) for body in bodies))

        answers = self.run(all_at_once())
        return [(answer.status, orjson.loads(bytes(answer.body))) for answer in answers]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store: Path = tmp_path_factory.mktemp("properties")
    make_archive(store / "identity.mar", {"handler.py": IDENTITY}, modelName="identity")
    files = {"handler.py": PICKY, "c.yaml": "{batchSize: 4, maxBatchDelay: 5, maxWorkers: 2}"}
    make_archive(store / "picky.mar", files, modelName="picky", configFile="c.yaml")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = Serving(Registry(Settings(model_store=store)), loop)
    for model in ("identity", "picky"):
        serving.run(serving.registry.register(f"{model}.mar"))
    yield serving
    serving.run(serving.registry.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


# --- tensors ---


def arrays(datatype: str, elements: st.SearchStrategy[Any] | None = None) -> Any:
    """Arrays of a datatype, in any shape of up to four dimensions; some have no elements."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
    if datatype == "BYTES":
        element = st.binary(max_size=5) if elements is None else elements
        return shapes.flatmap(
            lambda shape: st.lists(
                element, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))
            ).map(lambda values: _objects(values, shape))
        )
    return hnp.arrays(DATATYPES[datatype].dtype, shapes, elements=elements)


def _objects(values: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def tensors_of(names: Sequence[str], **elements: Any) -> st.SearchStrategy[Tensor]:
    """Tensors of the datatypes called ``names``."""
    return st.sampled_from(names).flatmap(
        lambda name: arrays(name, elements.get(name)).map(
            lambda array: Tensor(name="x", datatype=name, array=array)
        )
    )


#: Bit patterns of all bfloat16 but NaN, of which there are many; torch knows one.
BF16 = st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7FFF <= 0x7F80)


def assert_same(sent: Tensor, datatype: str, shape: Sequence[int], raw: bytes) -> None:
    assert datatype == sent.datatype
    assert list(shape) == (list(sent.shape) or [1])  # a scalar comes back as one element
    assert raw == bytes(buffers.to_raw(sent))


@given(sent=tensors_of(list(DATATYPES), BF16=BF16))
@settings(max_examples=150)
def test_any_tensor_survives_binary(serving: Serving, sent: Tensor) -> None:
    raw = bytes(buffers.to_raw(sent))
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": sent.datatype,
                    "shape": list(sent.shape),
                    "parameters": {"binary_data_size": len(raw)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    headers = {HEADER_LENGTH: str(len(head))}
    answer, body = serving.post("/v2/models/identity/infer", head + raw, **headers)
    assert answer.status == 200, body
    lengths = [int(value) for name, value in answer.headers if name == HEADER_LENGTH]
    length = lengths[0] if lengths else len(body)
    (output,) = orjson.loads(body[:length])["outputs"]
    assert_same(sent, output["datatype"], output["shape"], body[length:])


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
IN_JSON = [name for name, kind in DATATYPES.items() if kind.code or name == "BYTES"]


@given(
    sent=tensors_of(
        IN_JSON,
        FP32=FINITE,
        FP64=st.floats(allow_nan=False, allow_infinity=False),
        BYTES=st.text(max_size=5),
    ),
    nested=st.booleans(),
)
@settings(max_examples=150)
def test_any_tensor_survives_json(serving: Serving, sent: Tensor, nested: bool) -> None:
    data = sent.array if nested else sent.array.reshape(-1)
    given_ = {"name": "x", "datatype": sent.datatype, "shape": sent.shape, "data": data.tolist()}
    answer, body = serving.post(
        "/v2/models/identity/infer", json.dumps({"inputs": [given_]}).encode()
    )
    assert answer.status == 200, body
    (output,) = orjson.loads(body)["outputs"]
    returned = tensors.tensor_from_json(
        "x", output["datatype"], output["shape"], output["data"], "x"
    )
    assert_same(sent, output["datatype"], output["shape"], bytes(buffers.to_raw(returned)))


def infer(serving: Serving, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    sent = serving.run(OpenInference(serving.registry, 2**31).ModelInfer(request, Rpc()))
    return pb.ModelInferResponse.FromString(sent)


@given(sent=tensors_of(list(DATATYPES), BF16=BF16))
@settings(max_examples=150)
def test_any_tensor_survives_raw_grpc(serving: Serving, sent: Tensor) -> None:
    raw = bytes(buffers.to_raw(sent))
    request = pb.ModelInferRequest(model_name="identity", raw_input_contents=[raw])
    request.inputs.add(name="x", datatype=sent.datatype, shape=sent.shape)
    response = infer(serving, request)
    (output,) = response.outputs
    assert_same(sent, output.datatype, output.shape, response.raw_output_contents[0])


@given(sent=tensors_of([name for name, kind in DATATYPES.items() if kind.contents]))
@settings(max_examples=150)
def test_any_tensor_survives_typed_grpc(serving: Serving, sent: Tensor) -> None:
    field = DATATYPES[sent.datatype].contents
    request = pb.ModelInferRequest(model_name="identity")
    added = request.inputs.add(name="x", datatype=sent.datatype, shape=sent.shape)
    getattr(added.contents, field).extend(tensors.to_typed(sent))
    response = infer(serving, request)
    (output,) = response.outputs
    assert not response.raw_output_contents
    returned = tensors.tensor_from_typed(
        "x", output.datatype, list(output.shape), getattr(output.contents, field), "x"
    )
    assert_same(sent, output.datatype, output.shape, bytes(buffers.to_raw(returned)))


# --- batches ---

WHOLE = st.integers(-(2**63), 2**63 - 1)
INSTANCES = st.lists(WHOLE | st.text(max_size=3) | st.lists(st.booleans()), max_size=12)


def expected(instances: Sequence[Any]) -> dict[str, Any]:
    return {"predictions": [[row, len(str(row))] for row in instances]}


@given(instances=INSTANCES, data=st.data())
@settings(max_examples=60)
def test_neither_splitting_nor_merging_nor_order_changes_an_answer(
    serving: Serving, instances: list[Any], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(instances))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(instances)), max_size=4)))
    bounds = [0, *cuts, len(instances)]
    parts = [shuffled[a:b] for a, b in pairwise(bounds)]
    answers = serving.predict(instances, shuffled, *parts)
    assert answers == [(200, expected(part)) for part in (instances, shuffled, *parts)]


@given(parts=st.lists(st.lists(st.integers(0, 9) | st.just("poison"), max_size=3), max_size=8))
@settings(max_examples=60)
def test_a_bad_request_harms_no_other(serving: Serving, parts: list[list[Any]]) -> None:
    answers = serving.predict(*parts)
    refused = (418, {"error": "poison"})
    assert answers == [refused if "poison" in part else (200, expected(part)) for part in parts]
