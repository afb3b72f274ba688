"""Service envelopes on both servers."""

import base64
import json
import shutil
from collections.abc import Iterator

import pytest

from ..handlers.store import BERT, has_transformers
from ..server import ROOT
from .exchange import Step
from .pair import Pair
from .routes import JSON

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]
SAMPLES = ROOT / "kf_request_json"
PICTURE = (ROOT / "handlers" / "mnist" / "test_data" / "2.png").read_bytes()
ENCODED = base64.b64encode(PICTURE).decode()
TEXTS = ("text_classifier", *([BERT] if has_transformers() else []))
ROWS = ({"a": 1}, {"data": "x"}, {"b64": "eHg="}, {"data": {"b64": "eHg="}})
V2_ROWS = [
    {"name": "one", "shape": [2], "datatype": "INT64", "data": [1, 2]},
    {"name": "two", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 2]},
    {"name": "three", "shape": [1], "datatype": "BYTES", "data": ["x"]},
]


def step(envelope, path, body, note, headers=JSON, method="POST"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    note = f"{envelope}: {note}"
    return Step(
        port="inference", method=method, path=path, body=content, headers=headers, note=note
    )


def of_body():
    yield step("body", "/predictions/echo", b"x", "bytes", {})
    yield step("body", "/predictions/echo", b"x", "text", {"Content-Type": "text/plain"})
    yield step("body", "/predictions/echo", {"a": 1}, "object")
    yield step("body", "/predictions/echo", {"data": 1}, "object with data")
    yield step("body", "/predictions/echo", b'{"a":', "half of a JSON text")


def of_json():
    yield step("json", "/predictions/echo", {"instances": ROWS}, "instances")
    yield step("json", "/predictions/echo", {"instances": []}, "no instances")
    yield step("json", "/predictions/echo", {"instances": [1, "x"]}, "plain instances")
    yield step("json", "/predictions/echo", {"a": 1}, "no member instances")
    yield step("json", "/predictions/mnist", {"instances": [{"b64": ENCODED}]}, "picture")
    yield step("json", "/predictions/echo", b'{"a":', "half of a JSON text")


def of_kserve():
    for path in ("/predictions/{}", "/v1/models/{}:predict"):
        yield step("kserve", path.format("echo"), {"instances": ROWS}, "instances")
        yield step("kserve", path.format("echo"), {"instances": []}, "no instances")
        yield step("kserve", path.format("echo"), {"instances": [1, "x"]}, "plain instances")
        yield step("kserve", path.format("echo"), {"a": 1}, "no member instances")
        yield step("kserve", path.format("echo"), b'{"a":', "half of a JSON text")
    yield step("kserve", "/v1/models/nope:predict", {"instances": ROWS}, "no such model")
    yield step("kserve", "/v1/models/echo:predict", {"instances": ROWS}, "GET", method="GET")
    for name in ("mnist", "mnist_batch"):
        sample = (SAMPLES / "v1" / f"{name}.json").read_bytes()
        for verb in ("predict", "explain"):
            yield step("kserve", f"/v1/models/mnist:{verb}", sample, name)
    targeted = {"instances": [{"data": ENCODED, "target": 3}]}
    yield step("kserve", "/v1/models/mnist:explain", targeted, "target")
    yield step("kserve", "/explanations/mnist", targeted, "target")
    sample = (SAMPLES / "v1" / "text_classifier.json").read_bytes()
    for model in TEXTS:
        for verb in ("predict", "explain"):
            yield step("kserve", f"/v1/models/{model}:{verb}", sample, "text")
    yield step("kserve", "/v1/models/mnist:predict", {"instances": [{"data": "AAAA"}]}, "bad")


def of_kservev2():
    for path in ("/predictions/echo", "/v2/models/echo/infer"):
        yield step("kservev2", path, {"id": "1", "inputs": V2_ROWS}, "inputs")
        yield step("kservev2", path, {"inputs": V2_ROWS[:1]}, "one input, no id")
        together = {**JSON, "mode": "together"}
        yield step("kservev2", path, {"inputs": V2_ROWS}, "one output for all inputs", together)
        yield step("kservev2", path, {"inputs": []}, "no inputs")
        yield step("kservev2", path, {"a": 1}, "no member inputs")
        yield step("kservev2", path, b'{"a":', "half of a JSON text")
    yield step("kservev2", "/v2/models/nope/infer", {"inputs": V2_ROWS}, "no such model")
    for sample in sorted((SAMPLES / "v2" / "mnist").glob("*.json")):
        if "grpc" not in sample.name:
            for verb in ("infer", "explain"):
                path = f"/v2/models/mnist/{verb}"
                yield step("kservev2", path, sample.read_bytes(), sample.stem)
    for model in TEXTS:
        for sample in sorted((SAMPLES / "v2" / model.partition("_seq")[0]).glob("*.json")):
            path = f"/v2/models/{model}/infer"
            yield step("kservev2", path, sample.read_bytes(), sample.stem)


ENVELOPES = {"body": of_body, "json": of_json, "kserve": of_kserve, "kservev2": of_kservev2}
STEPS = [(name, one) for name, steps in ENVELOPES.items() for one in steps()]


@pytest.fixture(scope="module")
def pair(request, echo_store, handler_store, tmp_path_factory) -> Iterator[Pair]:
    """Both servers in one envelope."""
    folder = tmp_path_factory.mktemp(request.param)
    store = shutil.copytree(echo_store, folder / "store")
    archives = ["echo.mar"]
    if request.param != "body":
        archives += [f"{name}.mar" for name in ("mnist", *TEXTS)]
    for name in archives[1:]:
        shutil.copy(handler_store / name, store)
    models = ",".join(archives)
    with Pair(store, folder, load_models=models, service_envelope=request.param) as both:
        yield both


@pytest.mark.parametrize(
    ("pair", "step"),
    STEPS,
    ids=lambda value: getattr(value, "name", None),
    indirect=["pair"],
    scope="module",
)
def test_envelope(pair, step):
    pair.compare(step)
