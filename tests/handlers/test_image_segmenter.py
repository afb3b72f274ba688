import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import models, transforms

from .calls import encoded, picture, post, upload, v1, v2

MODEL = "image_segmenter"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def network(handler_store):
    made = models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)
    state = torch.load(handler_store.parent / MODEL / "weights.pt", weights_only=True)
    made.load_state_dict({name.removeprefix("network."): state[name] for name in state})
    return made.eval()


@pytest.fixture(scope="module")
def scene():
    """Coloured noise with a digit in a corner, so that not all pixels have one class."""
    noise = np.random.default_rng(1).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((40, 40)).resize((256, 256))
    image.paste(Image.open(io.BytesIO(picture(2))).resize((100, 100)), (100, 100))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def classes(network, scene):
    seen = transforms.Compose(
        [
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )(Image.open(io.BytesIO(scene)))
    with torch.inference_mode():
        return network(seen[None])["out"][0].argmax(0).numpy()


def alike(answer, expected):
    """Equal but for a few pixels: random weights make much of a rounding error."""
    return np.isclose(answer, expected, atol=1e-2).mean() > 0.99


def test_an_upload_is_answered_with_the_networks_class_of_each_pixel(server, network, scene):
    answer = np.array(upload(server, MODEL, scene).json())
    assert answer.shape == (224, 224, 2)
    assert len(np.unique(answer[..., 0])) > 1
    assert (answer[..., 0] == classes(network, scene)).mean() > 0.999
    assert ((answer[..., 1] > 1 / 21 - 1e-6) & (answer[..., 1] <= 1)).all()


def test_v2_answers_what_v1_answers(server):
    (output,) = v2(server, MODEL, encoded(2))
    assert output["shape"] == [224, 224, 2]
    answer = np.array(output["data"]).reshape(output["shape"])
    assert alike(answer, v1(server, MODEL, encoded(2))[0])


def test_a_batch_of_two_is_answered_as_two_singles(server):
    singles = [*v1(server, MODEL, encoded(2)), *v1(server, MODEL, encoded(7))]
    both = v1(server, MODEL, encoded(2), encoded(7))
    assert all(alike(*pair) for pair in zip(both, singles, strict=True))
    assert not alike(*singles)


def test_what_cannot_be_explained_says_so(server):
    body = {"instances": [{"data": encoded(2)}]}
    response = post(server, f"/v1/models/{MODEL}:explain", body)
    assert response.status_code == 501
    assert "tensor" in response.json()["error"]
