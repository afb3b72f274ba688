"""Each handler's archive answers on a GPU as on the CPU; convolutions there round to 10 bits."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from kserve_torch.handler.image_classifier import IMAGENET_NORMALIZE
from kserve_torch.handler.images import to_tensors

from ..handlers.calls import encoded, objects, picture, upload, v1, v2
from ..handlers.store import BERT, has_transformers
from ..server import Server

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]
TEXT = "this year business is good"
ROUNDING = 0.03


def gpu_of(server: Server, model: str) -> list[str]:
    with server.client(server.inference_url) as client:
        (version,) = client.get(f"/models/{model}").json()
    return [worker["gpuUsage"] for worker in version["workers"]]


def alike(answer, expected):
    return sorted(answer) == sorted(expected) and all(
        answer[label] == pytest.approx(expected[label], rel=ROUNDING, abs=1e-4) for label in answer
    )


def test_models_are_on_the_gpu(on_gpu, on_cpu):
    each = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    assert (gpu_of(on_gpu, "mnist"), gpu_of(on_cpu, "mnist")) == (each, ["N/A"])


@pytest.mark.parametrize("digit", range(10))
def test_digits(on_gpu, digit):
    assert v1(on_gpu, "mnist", encoded(digit), encoded(0)) == [digit, 0]
    assert upload(on_gpu, "mnist", picture(digit)).text == str(digit)


def test_pictures(on_gpu, on_cpu):
    # An untrained network is sure of nothing: the order of classes is left to rounding.
    answers, expected = (
        v1(s, "image_classifier", encoded(2), encoded(7)) for s in (on_gpu, on_cpu)
    )
    for answer, other in zip(answers, expected, strict=True):
        assert np.allclose(
            sorted(answer.values()), sorted(other.values()), rtol=ROUNDING, atol=1e-3
        )
        assert len(answer.keys() & other.keys()) >= 4
    assert alike(objects(v2(on_gpu, "image_classifier", encoded(2)))[0], answers[0])


def test_pixels(on_gpu, on_cpu):
    classes, expected = (
        np.array(v1(server, "image_segmenter", encoded(2))[0])[..., 0]
        for server in (on_gpu, on_cpu)
    )
    assert (classes == expected).mean() > 0.9


def test_objects(on_gpu, on_cpu):
    (found,), (expected,) = (v1(s, "object_detector", encoded(2)) for s in (on_gpu, on_cpu))
    assert len(found) == pytest.approx(len(expected), rel=0.1)
    assert found[0]["score"] == pytest.approx(expected[0]["score"], rel=ROUNDING)


def test_texts(on_gpu, on_cpu):
    for model in ("text_classifier", *([BERT] if has_transformers() else [])):
        (answer,), (expected,) = (v1(server, model, TEXT) for server in (on_gpu, on_cpu))
        assert alike(answer, expected)


@pytest.mark.parametrize("model", ["mnist", "image_classifier"])
def test_explanations(on_gpu, on_cpu, model):
    (values,), (expected,) = (
        v1(server, model, encoded(2), verb="explain") for server in (on_gpu, on_cpu)
    )
    assert np.shape(values) == np.shape(expected)
    assert np.corrcoef(np.ravel(values), np.ravel(expected))[0, 1] > 0.98


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scaled", [True, False])
def test_pixels_become_the_same_numbers(dtype, scaled):
    """To the last bit, though a GPU computes them."""
    noise = np.random.default_rng(0).integers(0, 256, (3, 256, 256, 3), np.uint8)
    photos = [Image.fromarray(each) for each in noise]
    steps = [transforms.ToTensor(), *([IMAGENET_NORMALIZE] if scaled else [])]
    torch.set_default_dtype(dtype)
    try:
        batch = to_tensors(photos, transforms.Compose(steps), "cuda:0")
        assert isinstance(batch, torch.Tensor)
        assert (batch.device.type, batch.dtype) == ("cuda", dtype)
        assert torch.equal(batch.cpu(), to_tensors(photos, transforms.Compose(steps)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_photos_of_a_batch(on_gpu, on_cpu):
    """Large enough to be decoded on several threads."""
    noise = np.random.default_rng(0).integers(0, 256, (4, 5, 5, 3), np.uint8)
    photos = []
    for each in noise:
        file = io.BytesIO()
        Image.fromarray(each).resize((300, 260)).save(file, "PNG")
        photos.append(file.getvalue())
    with on_gpu.client() as gpu, on_cpu.client() as cpu:
        rows = [{"data": {"b64": base64.b64encode(each).decode()}} for each in photos]
        answers, expected = (
            client.post("/v1/models/image_classifier:predict", json={"instances": rows}).json()
            for client in (gpu, cpu)
        )
    for answer, other in zip(answers["predictions"], expected["predictions"], strict=True):
        assert np.allclose(
            sorted(answer.values()), sorted(other.values()), rtol=ROUNDING, atol=1e-3
        )
