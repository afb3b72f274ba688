import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import models, transforms

from ..scripts import run_script
from .calls import encoded, objects, picture, post, refusal, sample, upload, v1, v2
from .store import HANDLERS

MODEL = "image_classifier"
pytestmark = pytest.mark.timeout(180)
CATEGORIES = models.ResNet18_Weights.DEFAULT.meta["categories"]


@pytest.fixture(scope="module")
def network(handler_store):
    made = models.resnet18()
    made.load_state_dict(torch.load(handler_store.parent / MODEL / "weights.pt", weights_only=True))
    return made.eval()


def best_five(network, digit):
    seen = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )(Image.open(io.BytesIO(picture(digit))).convert("RGB"))
    with torch.inference_mode():
        values, classes = torch.softmax(network(seen[None]), 1)[0].topk(5)
    return {CATEGORIES[number]: value for value, number in zip(values, classes, strict=True)}


def close(answer, expected):
    return list(answer) == list(expected) and np.allclose(
        list(answer.values()), list(expected.values()), rtol=1e-3, atol=1e-6
    )


def test_labels_are_torchvisions():
    labels = json.loads((HANDLERS / MODEL / "index_to_name.json").read_bytes())
    assert list(labels.values()) == CATEGORIES
    assert list(labels) == [str(number) for number in range(1000)]


def test_v1_answers_what_the_network_says(server, network):
    (answer,) = v1(server, MODEL, encoded(2))
    assert close(answer, best_five(network, 2))


def test_v2_answers_the_same(server):
    assert close(objects(v2(server, MODEL, encoded(2)))[0], v1(server, MODEL, encoded(2))[0])


def test_an_uploaded_file_is_answered_the_same(server):
    assert close(upload(server, MODEL, picture(2)).json(), v1(server, MODEL, encoded(2))[0])


def test_a_batch_of_two_is_answered_as_two_singles(server):
    singles = [*v1(server, MODEL, encoded(2)), *v1(server, MODEL, encoded(7))]
    both = v1(server, MODEL, encoded(2), encoded(7))
    assert all(close(*pair) for pair in zip(both, singles, strict=True))
    assert not close(*singles)


def test_an_explanation_has_the_networks_input_as_its_shape(server):
    (explained,) = v1(server, MODEL, encoded(2), verb="explain")
    assert np.shape(explained) == (3, 224, 224)
    assert np.abs(explained).max() > 0


def test_the_sample_request_is_answered(server):
    assert len(sample(server, "v1/mnist_batch.json", f"/v1/models/{MODEL}:predict")) == 1


def test_bad_pictures_are_the_clients_mistake(server):
    assert refusal(server, MODEL, "AAAA") == "instances[0].data: not a decodable image"
    assert refusal(server, MODEL, encoded(2), "%%") == "instances[1].data: not valid base64"
    assert upload(server, MODEL, b"no picture").status_code == 400


def test_a_tensor_of_another_shape_is_the_clients_mistake(server):
    body = {"instances": [{"data": np.zeros((1, 28, 28)).tolist()}]}
    response = post(server, f"/v1/models/{MODEL}:predict", body)
    assert response.status_code == 400
    assert "[1, 1, 28, 28]" in response.json()["error"]


def make_weights(*arguments):
    return run_script(HANDLERS / "make_weights.py", *arguments)


def test_torchvisions_checkpoints_fit(tmp_path):
    torch.manual_seed(3)
    checkpoint = models.resnet18().state_dict()
    torch.save(checkpoint, tmp_path / "theirs.pth")
    done = make_weights(MODEL, "--checkpoint", tmp_path / "theirs.pth", "--output", tmp_path)
    assert done.returncode == 0
    written = torch.load(tmp_path / MODEL / "weights.pt", weights_only=True)
    assert all(torch.equal(written[name], checkpoint[name]) for name in checkpoint)


@pytest.mark.parametrize("content", [{"fc.weight": torch.zeros(1)}, [1], None])
def test_what_is_no_checkpoint_of_it_is_one_line_and_exit_2(tmp_path, content):
    path = tmp_path / "theirs.pth"
    if content is not None:
        torch.save(content, path)
    done = make_weights(MODEL, "--checkpoint", path, "--output", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"make_weights: {path}: ")
    assert done.stderr.count("\n") == 1


def test_one_checkpoint_is_for_one_handler():
    done = make_weights(MODEL, "image_segmenter", "--checkpoint", "x.pth")
    assert done.returncode == 2
    assert "one handler only" in done.stderr
