import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import models, transforms

from .calls import encoded, objects, picture, upload, v1, v2
from .store import HANDLERS

MODEL = "object_detector"
pytestmark = pytest.mark.timeout(180)
CATEGORIES = models.detection.SSDLite320_MobileNet_V3_Large_Weights.DEFAULT.meta["categories"]


@pytest.fixture(scope="module")
def network(handler_store):
    made = models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    state = torch.load(handler_store.parent / MODEL / "weights.pt", weights_only=True)
    made.load_state_dict({name.removeprefix("network."): state[name] for name in state})
    return made.eval()


def found(network, digit):
    image = transforms.ToTensor()(Image.open(io.BytesIO(picture(digit))).convert("RGB"))
    with torch.inference_mode():
        (seen,) = network([image])
    sure = seen["scores"] >= 0.5
    columns = (seen[key][sure].tolist() for key in ("labels", "boxes", "scores"))
    return [
        {CATEGORIES[label]: box, "score": score} for label, box, score in zip(*columns, strict=True)
    ]


def close(answer, expected):
    """Alike; of objects with all but the same score the order is left to rounding."""

    def flat(detections):
        rows = [(*sorted(map(str, d)), d["score"], *box(d)) for d in detections]
        return sorted(rows, key=lambda row: (row[0], row[1], [round(v, 1) for v in row[3:]]))

    def box(detection):
        return next(value for key, value in detection.items() if key != "score")

    left, right = flat(answer), flat(expected)
    return [row[:2] for row in left] == [row[:2] for row in right] and np.allclose(
        [row[2:] for row in left], [row[2:] for row in right], rtol=1e-3, atol=1e-3
    )


def test_labels_are_torchvisions():
    labels = json.loads((HANDLERS / MODEL / "index_to_name.json").read_bytes())
    assert list(labels.values()) == CATEGORIES


def test_v1_answers_what_the_network_finds(server, network):
    (answer,) = v1(server, MODEL, encoded(2))
    assert len(answer) > 2
    assert close(answer, found(network, 2))


def test_v2_and_an_upload_are_answered_the_same(server):
    (answer,) = v1(server, MODEL, encoded(2))
    assert close(objects(v2(server, MODEL, encoded(2))), answer)
    assert close(upload(server, MODEL, picture(2)).json(), answer)


def test_a_batch_of_two_is_answered_as_two_singles(server):
    singles = [*v1(server, MODEL, encoded(2)), *v1(server, MODEL, encoded(7))]
    both = v1(server, MODEL, encoded(2), encoded(7))
    assert all(close(*pair) for pair in zip(both, singles, strict=True))
    assert not close(*singles)
