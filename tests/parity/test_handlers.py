"""The archives of ``handlers/`` on both servers: uploads, forms, JSON, explanations, errors."""

import base64
import io
import json
from collections.abc import Iterator

import pytest
from PIL import Image

from ..handlers.store import BERT, TORCHVISION, has_transformers
from ..server import ROOT
from .exchange import Step
from .pair import Pair
from .routes import JSON, PARTS

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]
PICTURES = ROOT / "handlers" / "mnist" / "test_data"
DIGIT = (PICTURES / "2.png").read_bytes()
SENTENCE = b"Bloomberg has reported on the economy"
PIXELS = [[[0.1 * (row % 7) for row in range(28)]] * 28]


def colourful() -> bytes:
    """A PNG file in RGB; TorchServe's handlers refuse grey ones."""
    channels = [Image.open(PICTURES / f"{digit}.png").resize((96, 96)) for digit in (2, 5, 7)]
    file = io.BytesIO()
    Image.merge("RGB", channels).save(file, "PNG")
    return file.getvalue()


PICTURE_OF = {"mnist": DIGIT, **dict.fromkeys(TORCHVISION, colourful())}
IMAGES = ("mnist", *TORCHVISION)
TEXTS = ("text_classifier", *([BERT] if has_transformers() else []))
EXPLAINED = ("mnist", "image_classifier", *TEXTS)


@pytest.fixture(scope="module")
def pair(handler_store, tmp_path_factory) -> Iterator[Pair]:
    with Pair(handler_store, tmp_path_factory.mktemp("handlers"), load_models="all") as both:
        yield both


def step(model, note, body, headers=None, verb="predictions", method="POST"):
    return Step(
        port="inference",
        method=method,
        path=f"/{verb}/{model}",
        body=body,
        headers=headers or {},
        note=note,
    )


def multipart(content):
    head = b'--B\r\nContent-Disposition: form-data; name="data"; filename="file"\r\n'
    return head + b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--B--\r\n"


def of_a_picture(model):
    picture = PICTURE_OF[model]
    encoded = base64.b64encode(picture)
    yield step(model, "upload", picture, method="PUT")
    yield step(model, "multipart", multipart(picture), PARTS)
    yield step(model, "base64 text", encoded, {"Content-Type": "text/plain"})
    yield step(model, "base64 in JSON", json.dumps(encoded.decode()).encode(), JSON)
    yield step(model, "no picture", b"no picture", method="PUT")
    yield step(model, "no base64", b"%", {"Content-Type": "text/plain"})


def of_a_text(model):
    yield step(model, "upload", SENTENCE, method="PUT")
    yield step(model, "multipart", multipart(SENTENCE), PARTS)
    yield step(model, "text", SENTENCE, {"Content-Type": "text/plain"})
    yield step(model, "JSON", json.dumps({"data": SENTENCE.decode()}).encode())
    yield step(model, "JSON text", json.dumps(SENTENCE.decode()).encode(), JSON)
    yield step(model, "no text", b"\xff\xfe", method="PUT")


STEPS = [
    *(one for model in IMAGES for one in of_a_picture(model)),
    *(one for model in TEXTS for one in of_a_text(model)),
    step("mnist", "tensor", json.dumps(PIXELS).encode(), JSON),
    step("mnist", "tensor of another shape", json.dumps([[1.0, 2.0]]).encode(), JSON),
    step("streaming", "upload", b"the client", method="PUT"),
    step("streaming", "unknown word", b"zebra", method="PUT"),
    step(
        "streaming", "form", b"data=client", {"Content-Type": "application/x-www-form-urlencoded"}
    ),
    *(
        step(model, "upload", PICTURE_OF.get(model, SENTENCE), verb="explanations")
        for model in EXPLAINED
    ),
    step("mnist", "multipart", multipart(DIGIT), PARTS, verb="explanations"),
    step("image_segmenter", "upload", colourful(), verb="explanations"),
    step("object_detector", "upload", colourful(), verb="explanations"),
    step("image_classifier", "grey picture", DIGIT),
    step("image_segmenter", "grey picture", DIGIT),
    step("streaming", "upload", b"the client", verb="explanations"),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_handler(pair, step):
    pair.compare(step)
