import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError
from torchvision import transforms

from kserve_torch.errors import BadRow, InvalidInput, Unsupported
from kserve_torch.handler.vision import VisionHandler
from kserve_torch.messages import Verb

PROCESSING = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])


class Vision(VisionHandler):
    image_processing = PROCESSING


def processed(data):
    return PROCESSING(Image.open(io.BytesIO(data)))


def b64(data):
    return base64.b64encode(data).decode()


def test_every_form_of_an_image_gives_the_same_tensor(folder, load, png):
    loaded = load(Vision(), folder)
    data = png()
    rows = [
        {"data": data},
        {"body": bytearray(data)},
        {"data": b64(data)},
        {"data": None, "body": b64(data)},
        {"data": {"b64": b64(data)}},
        {"image": {"b64": b64(data)}},
        {"b64": b64(data)},
        b64(data),
        data,
    ]
    tensor = loaded.handler.preprocess(rows)
    assert torch.equal(tensor, torch.stack([processed(data)] * len(rows)))


def test_numbers_go_without_processing(folder, load):
    numbers = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    rows = [{"data": numbers}, {"data": numbers.tolist()}, {"data": torch.tensor(numbers)}]
    tensor = load(Vision(), folder).handler.preprocess(rows)
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor, torch.tensor(numbers).float().expand(3, 1, 8, 8))


def test_images_and_numbers_in_one_batch_keep_their_order(folder, load, png):
    rows = [{"data": png(seed=1)}, {"data": np.zeros((1, 8, 8))}, {"data": png(seed=2)}]
    tensor = load(Vision(), folder).handler.preprocess(rows)
    expected = [processed(png(seed=1)), torch.zeros(1, 8, 8), processed(png(seed=2))]
    assert torch.equal(tensor, torch.stack(expected))


def test_processing_may_be_a_method_of_the_handler(folder, load, png):
    class Handler(VisionHandler):
        def image_processing(self, image):
            return transforms.functional.to_tensor(image) * 2

    tensor = load(Handler(), folder).handler.preprocess([{"data": png()}])
    assert torch.equal(
        tensor[0], transforms.functional.to_tensor(Image.open(io.BytesIO(png()))) * 2
    )


def test_transforms_that_a_handler_changes_are_its_own(folder, load, png):
    class NoInit(VisionHandler):
        def __init__(self, extra=1):
            pass

    for kind in (VisionHandler, NoInit):
        first, second = kind(), kind()
        first.image_processing.transforms.insert(0, transforms.Pad(1))
        assert len(second.image_processing.transforms) == 1
        assert len(VisionHandler.image_processing.transforms) == 1
        assert load(first, folder).handler.preprocess([{"data": png()}]).shape == (1, 1, 10, 10)
        assert load(second, folder).handler.preprocess([{"data": png()}]).shape == (1, 1, 8, 8)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"data": "@@@"}, "data: not valid base64"),
        ({"data": {"b64": "@@@"}}, "data: not valid base64"),
        ({"data": " " * 400_000 + "@"}, "data: not valid base64"),  # not in quadratic time
        ({"b64": " " * 400_000 + "@"}, "data: not valid base64"),
        ({"body": b"junk"}, "data: not a decodable image"),
        ({}, "data: missing or empty"),
        ({"data": "", "body": b""}, "data: missing or empty"),
        ({"data": {"url": "x"}}, "data: expected numbers or lists of numbers, got dict"),
        ({"data": [[1], [1, 2]]}, "data: expected numbers in a list of regular shape"),
        (
            {"data": [["AA=="], ["AA=="]]},
            "data: expected one image, got a list of 2; each needs a row of its own",
        ),
    ],
)
def test_an_unreadable_row_is_named(folder, load, png, row, reason):
    with pytest.raises(BadRow) as caught:
        load(Vision(), folder).ask({"data": png()}, row)
    assert (caught.value.index, caught.value.reason) == (1, reason)


@pytest.mark.parametrize("kind", [UnidentifiedImageError, OSError, BadRow])
def test_handlers_may_catch_what_pil_raises(folder, load, kind):
    class Catching(Vision):
        def preprocess(self, data):
            try:
                return super().preprocess(data)
            except kind:
                return torch.zeros(1, 1, 8, 8)

    assert load(Catching(), folder).ask({"data": b"junk"}) == load(Vision(), folder).ask(
        torch.zeros(1, 8, 8).tolist()
    )


def test_images_of_different_sizes_in_one_batch(folder, load, png):
    with pytest.raises(InvalidInput, match=r"row 0 \[1, 8, 8\], row 1 \[1, 9, 9\]"):
        load(Vision(), folder).ask({"data": png()}, {"data": png(size=(9, 9))})


def test_images_that_become_other_numbers_in_the_requests_of_a_batch(folder, load, png):
    class Bytes(VisionHandler):
        image_processing = transforms.Compose([transforms.PILToTensor()])

    loaded = load(Bytes(), folder)
    with pytest.raises(InvalidInput, match="different dtypes"):
        loaded.ask_apart({"data": png()}, {"data": np.zeros((1, 8, 8))})


def test_colour_for_a_grey_model_is_the_clients_fault(folder, load, png):
    with pytest.raises(InvalidInput, match=r"does not take \[1, 3, 8, 8\] float32"):
        load(Vision(), folder).ask({"data": png("RGB")})


def test_the_limit_of_pixels_can_be_lifted(folder, load, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    loaded = load(Vision(), folder)
    assert Image.MAX_IMAGE_PIXELS == 100
    loaded.context.system_properties["limit_max_image_pixels"] = False
    loaded.initialize()
    assert Image.MAX_IMAGE_PIXELS is None


def test_explanations_have_the_shape_of_the_input(folder, load, png):
    loaded = load(Vision(), folder)
    (explanation,) = loaded.ask({"data": png(), "target": 1}, verb=Verb.EXPLAIN)
    assert np.array(explanation).shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (7, r"^row {row}: target: 7 is no class, the model has 3 \(0 is the first\)$"),
        (-4, "^row {row}: target: -4 is no class, the model has 3"),
        ([1, 2], "^target: .* does not fit the model's output"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_a_target_that_the_model_does_not_have(folder, load, png, count, target, message):
    loaded = load(Vision(), folder)
    fine = target if isinstance(target, list) else 2
    rows = [*([{"data": png(), "target": fine}] * (count - 1)), {"data": png(), "target": target}]
    with pytest.raises(InvalidInput, match=message.format(row=count - 1)):
        loaded.ask(*rows, verb=Verb.EXPLAIN)


def test_explanations_compile_nothing(folder, load):
    compiled = {"pt2": {"compile": {"enable": True, "backend": "eager"}}}
    loaded = load(Vision(), folder, yaml=compiled)
    counts = torch._dynamo.utils.counters["frames"]
    before = dict(counts)
    (explanation,) = loaded.ask({"data": [[[0.5] * 8] * 8], "target": 1}, verb=Verb.EXPLAIN)
    assert np.shape(explanation) == (1, 8, 8)
    assert dict(counts) == before


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        (lambda output: output.detach(), "the model gives no gradients"),
        (lambda output: output.argmax(1), "the model gives no gradients"),
        (lambda output: {"out": output}, "models that answer a tensor, not a dict"),
    ],
)
def test_models_that_cannot_be_explained_say_so(folder, load, png, answered, reason):
    loaded = load(Vision(), folder)
    own = loaded.handler.model
    loaded.handler.model = lambda inputs: answered(own(inputs))
    with pytest.raises(Unsupported, match=reason):
        loaded.ask({"data": png()}, verb=Verb.EXPLAIN)


class Detector(Vision):
    def preprocess(self, data):
        return list(super().preprocess(data))


class Own(Vision):
    def initialize(self, context):
        self.device = torch.device("cpu")


@pytest.mark.parametrize("kind", [Detector, Own])
def test_subclasses_that_cannot_explain_say_so(folder, load, png, kind):
    with pytest.raises(Unsupported, match=f"{kind.__name__} gives no explanations"):
        load(kind(), folder).ask({"data": png()}, verb=Verb.EXPLAIN)


def test_handlers_may_ask_for_the_error_of_an_explanation(folder, load, png):
    """Captum runs the model without gradients for it."""
    handler = load(Vision(), folder).handler
    inputs = handler.preprocess([{"data": png()}])
    _, error = handler.ig.attribute(inputs, target=1, return_convergence_delta=True)
    assert error.shape == (1,)
