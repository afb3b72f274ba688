import json

import pytest

from kserve_torch.messages import Request, Verb
from kserve_torch.runtime.context import Context
from kserve_torch.ts.torch_handler.request_envelope.body import BodyEnvelope
from kserve_torch.ts.torch_handler.request_envelope.json import JSONEnvelope
from kserve_torch.ts.torch_handler.request_envelope.kserve import KServeEnvelope
from kserve_torch.ts.torch_handler.request_envelope.kservev2 import KServev2Envelope


@pytest.fixture
def context():
    manifest = {"model": {"modelName": "m", "modelVersion": "2.0"}}
    context = Context("m", "/x", manifest, 1, None, "0.12.0")
    context.begin([Request(id="r", model="m", rows=[{}])])
    return context


def sums(data, context):
    return [sum(row) for row in data]


def test_json_splits_results_by_body(context):
    data = [
        {"body": {"instances": [[1.0, 2.0]]}},
        {"data": {"instances": [[4.0, 3.0], [5.0, 6.0]]}},
        {"instances": []},
    ]
    assert JSONEnvelope(sums).handle(data, context) == [
        '{"predictions": [3.0]}',
        '{"predictions": [7.0, 11.0]}',
        '{"predictions": []}',
    ]


def test_json_decodes_base64_in_rows_and_columns(context):
    data = [{"instances": [{"b64": "YQ=="}, {"image": {"b64": "Yg=="}, "n": 1}]}]
    seen = []

    def handle(rows, context):
        seen.extend(rows)
        return [0] * len(rows)

    JSONEnvelope(handle).handle(data, context)
    assert seen == [b"a", {"image": b"b", "n": 1}]


def test_body(context):
    assert BodyEnvelope(sums).handle([{"body": [1, 2]}, {"data": [3]}], context) == [3, 3]


def test_kserve(context):
    data = [
        {"body": {"instances": [[1], [2]]}},
        {"body": json.dumps({"instances": [[3]]}).encode()},
    ]
    envelope = KServeEnvelope(sums)
    assert envelope.handle(data, context) == [{"predictions": [1, 2]}, {"predictions": [3]}]
    context.begin([Request(id="r", model="m", rows=[{}], verb=Verb.EXPLAIN)])
    assert envelope.handle(data[1:], context) == [{"explanations": [3]}]


def test_kservev2(context):
    def inputs(*tensors):
        return {"body": {"id": "i", "inputs": list(tensors)}}

    numbers = {"name": "x", "shape": [2, 2], "datatype": "INT64", "data": [1, 2, 3, 4]}
    text = {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["abc"]}
    seen = []

    def handle(rows, context):
        seen.extend(row["data"] for row in rows)
        return [[[1.5, 2.5]], "text", 3]

    first, second = KServev2Envelope(handle).handle(
        [inputs(numbers, text), inputs(numbers)], context
    )
    assert seen == [[[1, 2], [3, 4]], "abc", [[1, 2], [3, 4]]]
    assert first == {
        "id": "i",
        "model_name": "m",
        "model_version": "2.0",
        "outputs": [
            {"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1.5, 2.5]},
            {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["text"]},
        ],
    }
    assert second["outputs"] == [{"name": "x", "shape": [1], "datatype": "INT64", "data": [3]}]


@pytest.mark.parametrize("envelope", [JSONEnvelope, BodyEnvelope, KServeEnvelope, KServev2Envelope])
def test_the_initialising_call_goes_through(envelope, context):
    assert envelope(lambda data, context: data).handle(None, context) is None
