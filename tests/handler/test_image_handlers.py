import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms
from torchvision.models.detection.ssdlite import ssdlite320_mobilenet_v3_large
from torchvision.transforms._presets import ImageClassification

from kserve_torch.errors import BadRow
from kserve_torch.handler.image_classifier import ImageClassifier
from kserve_torch.handler.image_segmenter import ImageSegmenter
from kserve_torch.handler.object_detector import ObjectDetector

COLOUR_NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, {classes})

    def forward(self, x):
        return self.fc(x.mean((2, 3)))
"""
SEGMENT_NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return {"out": self.conv(x)}
"""


@pytest.fixture
def colour(tmp_path):
    def colour(source):
        (tmp_path / "net.py").write_text(source)
        return tmp_path

    return colour


NO_WEIGHTS = {"modelFile": "net.py"}


def test_images_are_prepared_as_torchvisions_models_were_trained():
    wanted = ImageClassification(crop_size=224)
    _, resize, crop, _, normalize = ImageClassifier.image_processing.transforms
    assert [resize.size] == wanted.resize_size
    assert crop.size == (*wanted.crop_size, *wanted.crop_size)
    assert (normalize.mean, normalize.std) == (wanted.mean, wanted.std)


def test_the_five_best_classes_best_first(colour, load, png):
    loaded = load(ImageClassifier(), colour(COLOUR_NET.format(classes=7)), NO_WEIGHTS)
    (answer,) = loaded.ask({"data": png("RGB", (300, 260))})
    assert len(answer) == 5
    assert list(answer.values()) == sorted(answer.values(), reverse=True)
    with torch.inference_mode():
        logits = loaded.handler.model(loaded.handler.preprocess([{"data": png("RGB", (300, 260))}]))
    probabilities = torch.softmax(logits, 1)[0].tolist()
    assert answer == {str(i): probabilities[i] for i in map(int, answer)}


def test_fewer_classes_than_five_and_another_number(colour, load, png):
    folder = colour(COLOUR_NET.format(classes=3))
    (folder / "index_to_name.json").write_text('{"0": "cat", "1": ["n1", "dog"], "2": "cow"}')
    loaded = load(ImageClassifier(), folder, NO_WEIGHTS)
    (answer,) = loaded.ask({"data": png("RGB")})
    assert set(answer) == {"cat", "dog", "cow"}
    loaded.handler.set_max_result_classes(1)
    assert loaded.handler.get_max_result_classes() == 1
    (answer,) = loaded.ask({"data": png("RGB")})
    assert len(answer) == 1


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
def test_imagenet_transforms_of_any_image(colour, load, png, mode):
    handler = load(ImageClassifier(), colour(COLOUR_NET.format(classes=7)), NO_WEIGHTS).handler
    tensor = handler.preprocess([{"data": png(mode, (300, 260))}])
    assert tensor.shape == (1, 3, 224, 224)


def test_an_image_of_32_bits_is_named(colour, load):
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8), np.float32)).save(file, "TIFF")
    folder = colour(COLOUR_NET.format(classes=7))
    loaded = load(ImageClassifier(), folder, NO_WEIGHTS)
    with pytest.raises(BadRow, match="expected an image of 8 or 16 bits") as caught:
        loaded.ask({"data": np.zeros((3, 224, 224))}, {"data": file.getvalue()})
    assert caught.value.index == 1


def test_imagenet_transforms_are_torchservs(colour, load, png):
    from io import BytesIO

    from PIL import Image

    torchserve = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    data = png("RGB", (300, 260))
    handler = load(ImageClassifier(), colour(COLOUR_NET.format(classes=7)), NO_WEIGHTS).handler
    assert torch.equal(
        handler.preprocess([{"data": data}])[0], torchserve(Image.open(BytesIO(data)))
    )


def test_class_and_probability_of_every_pixel(colour, load, png):
    loaded = load(ImageSegmenter(), colour(SEGMENT_NET), NO_WEIGHTS)
    answers = loaded.ask({"data": png("RGB", (300, 260))}, {"data": png("RGB", (256, 256), 1)})
    pixels = np.array(answers)
    assert pixels.shape == (2, 224, 224, 2)
    assert set(np.unique(pixels[..., 0])) <= {0.0, 1.0, 2.0, 3.0}
    assert (pixels[..., 1] >= 0.25).all()
    assert (pixels[..., 1] <= 1).all()


def test_detections_over_the_threshold(folder, load):
    (folder / "index_to_name.json").write_text('{"1": "cat", "2": "dog"}')
    handler = load(ObjectDetector(), folder).handler
    row = {
        "boxes": torch.tensor([[0.0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]),
        "labels": torch.tensor([1, 2, 1]),
        "scores": torch.tensor([0.75, 0.5, 0.25]),
    }
    empty = {key: value[:0] for key, value in row.items()}
    assert handler.postprocess([row, empty]) == [
        [{"cat": [0, 0, 1, 1], "score": 0.75}, {"dog": [2, 2, 3, 3], "score": 0.5}],
        [],
    ]


class Detector(nn.Module):
    """torchvision's smallest detector, its scores as they come."""

    def __init__(self):
        super().__init__()
        self.model = ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=3, score_thresh=0.0
        )

    def forward(self, x):
        return self.model(x)


def test_a_torchvision_detector(folder, load, png):
    loaded = load(ObjectDetector(), folder)
    torch.manual_seed(0)
    loaded.handler.model = Detector().eval()
    loaded.handler.threshold = 0.0
    answers = loaded.ask({"data": png("RGB", (32, 32))}, {"data": png("L", (32, 32))})
    assert len(answers) == 2
    assert all(set(found) > {"score"} for answer in answers for found in answer)
    loaded.handler.threshold = 1.1
    assert loaded.ask({"data": png("RGB", (32, 32))}) == [[]]
