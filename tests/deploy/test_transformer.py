import asyncio
import base64
import importlib.util
import io
import json
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ..hosts import hosting

SCRIPT = Path(__file__).parents[2] / "deploy/transformer/image_transformer.py"


@pytest.fixture(scope="module")
def script():
    """The transformer's module; kserve reads sys.argv when it is imported."""
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        spec = importlib.util.spec_from_file_location("image_transformer", SCRIPT)
        module = importlib.util.module_from_spec(spec)
        sys.modules["image_transformer"] = module
        spec.loader.exec_module(module)
    finally:
        sys.argv = arguments
    return module


@pytest.fixture
def digits(script):
    return script.ImageTransformer("mnist", script.Form())


def picture(value=255, size=(28, 28), mode="L", kind="PNG"):
    file = io.BytesIO()
    Image.new(mode, size, value).save(file, kind)
    return file.getvalue()


def text(data):
    return base64.b64encode(data).decode()


def preprocessed(model, payload):
    return asyncio.run(model.preprocess(payload))


WHITE, BLACK = (1 - 0.1307) / 0.3081, -0.1307 / 0.3081


@pytest.mark.parametrize(
    "instance",
    [
        {"data": text(picture())},
        {"image": {"b64": text(picture())}},
        {"data": text(picture(size=(56, 80)))},
        {"data": text(picture((255, 255, 255), mode="RGB", kind="JPEG"))},
    ],
    ids=["data", "image.b64", "another size", "colour"],
)
def test_pictures_of_v1_become_normalised_nested_lists(digits, instance):
    request = preprocessed(digits, {"instances": [instance], "parameters": {"a": 1}})
    assert request["parameters"] == {"a": 1}
    array = np.array(request["instances"][0]["data"])
    assert array.shape == (1, 28, 28)
    assert np.allclose(array, WHITE, atol=1e-4)


def test_several_instances_stay_in_order(digits):
    given = [{"data": text(picture(value))} for value in (0, 255)]
    rows = preprocessed(digits, {"instances": given})["instances"]
    assert np.allclose([np.mean(row["data"]) for row in rows], [BLACK, WHITE], atol=1e-4)


def test_rows_that_are_numbers_pass_unchanged(digits):
    rows = [[1.0, 2.0], {"data": [[[0.5]]]}]
    assert preprocessed(digits, {"instances": rows}) == {"instances": rows}


def test_colour_models_get_three_channels(script):
    form = script.Form(size=(4, 2), mode="RGB", mean=(0.0, 0.5, 1.0), deviation=(1.0, 0.5, 1.0))
    tensor = form.tensor(picture((255, 255, 255), mode="RGB"))
    assert tensor.shape == (3, 2, 4)
    assert tensor[:, 0, 0].tolist() == [1.0, 1.0, 0.0]


def infer_request(script, elements, raw=False):
    given = script.InferInput("input-0", [len(elements)], "BYTES")
    if raw:
        given.set_data_from_numpy(np.array(elements, dtype=object), binary_data=True)
    else:
        given._data = elements
    numbers = script.InferInput("threshold", [1], "FP32", data=[0.5])
    return script.InferRequest("mnist", [given, numbers])


@pytest.mark.parametrize("raw", [False, True], ids=["JSON", "binary"])
def test_each_picture_of_a_bytes_tensor_becomes_a_tensor(script, digits, raw):
    elements = [picture(0), picture(255)] if raw else [text(picture(0)), text(picture(255))]
    made = preprocessed(digits, infer_request(script, elements, raw)).inputs
    assert [tensor.name for tensor in made] == ["input-0-0", "input-0-1", "threshold"]
    assert [tensor.shape for tensor in made] == [[1, 28, 28], [1, 28, 28], [1]]
    assert np.allclose(made[0].as_numpy(), BLACK, atol=1e-4)
    assert np.allclose(made[1].as_numpy(), WHITE, atol=1e-4)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, 'Expected "instances" to be a list'),
        ({"instances": {"data": ""}}, 'Expected "instances" to be a list'),
        ({"instances": [{"data": "%%%"}]}, "instances[0].data: not valid base64"),
        ({"instances": [[], {"data": text(b"GIF8")}]}, "instances[1].data: not a picture"),
        ({"instances": [{"data": 7}]}, "instances[0].data: expected a picture in base64, got int"),
        ({"instances": [{"image": "x"}]}, "instances[0].image.b64: expected a picture"),
        ({"instances": [{}]}, "instances[0].data: expected a picture in base64, got NoneType"),
        ({"instances": [{"data": text(picture()[:45])}]}, "instances[0].data: not a picture"),
    ],
)
def test_what_cannot_be_read_is_named(script, digits, payload, message):
    with pytest.raises(script.InvalidInput) as raised:
        preprocessed(digits, payload)
    assert message in str(raised.value)


def test_unreadable_elements_of_a_tensor_are_named(script, digits):
    with pytest.raises(script.InvalidInput) as raised:
        preprocessed(digits, infer_request(script, [text(picture()), "AAAA"]))
    assert "inputs.input-0[1]: not a picture" in str(raised.value)


@pytest.mark.parametrize("option", ["--mean", "--deviation"])
def test_numbers_per_channel_fit_the_mode(script, option, capsys):
    numbers = [option, "0.5,0.5,0.5"]
    script.arguments([*numbers, "--image_mode", "RGB"])
    with pytest.raises(SystemExit):
        script.arguments(numbers)
    assert f"argument {option}: 3 numbers given, for --image_mode L" in capsys.readouterr().err


def test_command_line_takes_kserves_flags_and_the_pictures_form(script):
    args = script.arguments(
        [
            *("--model_name=mnist", "--predictor_host=p:80", "--image_size=224"),
            *("--image_mode=RGB", "--mean=0.5,0.5,0.5", "--deviation=1,1,1"),
        ]
    )
    model = script.transformer(args)
    assert (model.name, model.explainer_host, model.use_ssl) == ("mnist", "p:80", False)
    assert model.form.size == (224, 224)
    assert model.form.mean == (0.5, 0.5, 0.5)


class Predictor(BaseHTTPRequestHandler):
    """Answers every row with the rounded mean of its numbers."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        means = [round(float(np.mean(row["data"])), 2) for row in body["instances"]]
        key = "explanations" if self.path.endswith(":explain") else "predictions"
        answer = json.dumps({key: means, "path": self.path}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def predictor():
    with hosting(Predictor) as url:
        yield url.removeprefix("http://")


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_the_predictor_is_asked_with_tensors_and_its_answer_passed_on(
    script, predictor, monkeypatch, verb
):
    from kserve import context
    from kserve.inference_client import InferenceRESTClient, RESTConfig
    from kserve.model import InferenceVerb
    from kserve.predictor_config import PredictorConfig

    monkeypatch.setattr(context, "get_predictor_config", lambda: PredictorConfig(predictor))
    model = script.ImageTransformer("mnist", script.Form(), predictor)
    payload = {"instances": [{"data": text(picture(255))}]}

    async def call():
        # kserve's own client is shared by the whole process; this one can be closed.
        async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
            model._http_client_instance = client
            return await model(payload, {}, InferenceVerb[verb.upper()])

    answer, _ = asyncio.run(call())
    key = {"predict": "predictions", "explain": "explanations"}[verb]
    assert answer == {key: [2.82], "path": f"/v1/models/mnist:{verb}"}
