import base64
import importlib
import importlib.util
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torchvision import transforms

from kserve_torch.runtime.context import Context

from ..scripts import run_script

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "handlers" / "mnist"
PICTURES = MNIST / "test_data"
REQUESTS = ROOT / "kf_request_json"
#: The 2 in the requests that KServe's and TorchServe's documents show.
DOCUMENTED_2 = (
    "iVBORw0KGgoAAAANSUhEUgAAABwAAAAcCAAAAABXZoBIAAAAw0lEQVR4nGNgGFggVVj4/y8Q2GOR83n+58/fP0Dw"
    "cSqmpNN7oOTJw6f+/H2pjUU2JCSEk0EWqN0cl828e/FIxvz9/9cCh1zS5z9/G9mwyzl/+PNnKQ45nyNAr9ThMHQ/"
    "UG4tDofuB4bQIhz6fIBenMWJQ+7Vn7+zeLCbKXv6z59NOPQVgsIcW4QA9YFi6wNQLrKwsBebW/68DJ388Nun5XFo"
    "crqvIFH59+XhBAxThTfeB0r+vP/QHbuDCgr2JmOXoSsAAKK7bU3vISS4AAAAAElFTkSuQmCC"
)
NORMALIZED = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])


def load(name):
    spec = importlib.util.spec_from_file_location(f"_test_{name}", MNIST / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def net():
    made = load("mnist").Net()
    made.load_state_dict(torch.load(MNIST / "mnist_cnn.pt", weights_only=True))
    return made.eval()


@pytest.fixture(scope="module")
def handler_module():
    names = ["ts", "ts.service", "ts.torch_handler", "ts.torch_handler.image_classifier"]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, importlib.import_module(f"kserve_torch.{name}"))
        yield load("mnist_handler")


@pytest.fixture(scope="module")
def handler(handler_module):
    model = {"modelFile": "mnist.py", "serializedFile": "mnist_cnn.pt", "modelName": "mnist"}
    context = Context("mnist", str(MNIST), {"model": model}, 1, None, "1.0")
    made = handler_module.MNISTDigitClassifier()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(MNIST)
        patch.delitem(sys.modules, "mnist", raising=False)
        made.initialize(context)
        sys.modules.pop("mnist", None)
    return made


def read(net, image):
    with torch.inference_mode():
        return int(net(NORMALIZED(image)[None]).argmax())


def answers(handler, rows):
    return handler.postprocess(handler.inference(handler.preprocess(rows)))


def picture(digit):
    return Image.open(PICTURES / f"{digit}.png")


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_network_has_the_shapes_of_pytorchs_example(net):
    assert {name: tuple(weight.shape) for name, weight in net.state_dict().items()} == {
        "conv1.weight": (32, 1, 3, 3),
        "conv1.bias": (32,),
        "conv2.weight": (64, 32, 3, 3),
        "conv2.bias": (64,),
        "fc1.weight": (128, 9216),
        "fc1.bias": (128,),
        "fc2.weight": (10, 128),
        "fc2.bias": (10,),
    }
    assert (net.dropout1.p, net.dropout2.p) == (0.25, 0.5)


def test_network_gives_logarithms_of_probabilities(net):
    scores = net(torch.randn(3, 1, 28, 28))
    torch.testing.assert_close(scores.exp().sum(1), torch.ones(3))


def test_weights_are_small_enough_for_the_repository():
    assert (MNIST / "mnist_cnn.pt").stat().st_size < 5_000_000


def test_weights_read_the_held_out_digits_as_the_readme_says(net):
    sheet = torch.tensor(np.asarray(Image.open(PICTURES / "held_out.png")))
    digits = sheet.view(10, 28, 36, 28).transpose(1, 2).reshape(360, 1, 28, 28).float() / 255
    with torch.inference_mode():
        said = net((digits - 0.1307) / 0.3081).argmax(1)
    right = int((said == torch.arange(10).repeat_interleave(36)).sum())
    stated = re.search(r"reads (\d+) of 360", (MNIST / "README.md").read_text())
    assert stated is not None
    assert right == int(stated[1])


def test_pictures_are_the_first_of_the_held_out_digits():
    sheet = np.asarray(Image.open(PICTURES / "held_out.png"))
    for digit in range(10):
        first = sheet[digit * 28 : digit * 28 + 28, :28]
        assert np.array_equal(np.asarray(picture(digit)), first)


def test_sample_requests_hold_what_their_answers_say(net):
    def digits(name, field, decode):
        rows = json.loads((REQUESTS / name).read_bytes())[field]
        return [decode(row["data"]) for row in rows]

    def image(data):
        encoded = data if isinstance(data, str) else data[0]
        return read(net, Image.open(io.BytesIO(base64.b64decode(encoded))))

    def tensor(data):
        return int(net(torch.tensor(data)[None]).argmax())

    assert digits("v1/mnist.json", "instances", image) == [2]
    assert digits("v1/mnist_batch.json", "instances", image) == [2, 7]
    assert digits("v2/mnist/mnist_v2_bytes_batch.json", "inputs", image) == [2, 7]
    assert digits("v2/mnist/mnist_v2_tensor_batch.json", "inputs", tensor) == [2, 7]


def test_handler_answers_one_digit_per_row(handler):
    rows = [
        {"data": bytearray((PICTURES / "2.png").read_bytes())},
        {"body": DOCUMENTED_2},
        {"data": NORMALIZED(picture(7)).tolist()},
    ]
    assert answers(handler, rows) == [2, 2, 7]


def test_handler_sees_grey_28x28_exactly_as_the_stock_transforms(handler):
    rows = [{"data": bytearray((PICTURES / f"{digit}.png").read_bytes())} for digit in range(10)]
    expected = torch.stack([NORMALIZED(picture(digit)) for digit in range(10)])
    assert torch.equal(handler.preprocess(rows), expected)


def test_handler_explains_with_the_pictures_shape(handler):
    explained = handler.explain_handle(
        handler.preprocess([{"data": DOCUMENTED_2}]), [{"data": DOCUMENTED_2, "target": 2}]
    )
    assert np.shape(explained) == (1, 1, 28, 28)
    assert np.abs(explained).max() > 0


def large(digit):
    return picture(digit).resize((300, 300), Image.Resampling.BICUBIC)


def off_centre(digit):
    page = Image.new("L", (400, 250))
    page.paste(picture(digit).resize((120, 120), Image.Resampling.BICUBIC), (260, 20))
    return page


def blue_on_white(digit):
    return ImageOps.colorize(large(digit), black="white", white="navy")


def grey_on_paper(digit):
    noise = np.random.default_rng(digit).integers(-8, 9, (300, 300))
    return Image.fromarray((220 - np.asarray(large(digit)) * 0.6 + noise).clip(0, 255).astype("u1"))


def black_on_nothing(digit):
    ink = Image.new("RGBA", (300, 300), "black")
    ink.putalpha(large(digit))
    return ink


def colour_28(digit):
    return picture(digit).convert("RGB")


def palette(digit):
    return large(digit).convert("P")


@pytest.mark.parametrize("digit", range(10))
@pytest.mark.parametrize(
    "draw",
    [large, off_centre, blue_on_white, grey_on_paper, black_on_nothing, colour_28, palette],
)
def test_handler_reads_pictures_of_other_forms(handler, draw, digit):
    assert answers(handler, [{"data": png(draw(digit))}]) == [digit]


def printed(digit):
    page = Image.new("RGB", (200, 200), "white")
    ImageDraw.Draw(page).text((60, 40), str(digit), fill="black", font=ImageFont.load_default(100))
    return page


def test_handler_reads_printed_digits(handler):
    rows = [{"data": png(printed(digit))} for digit in range(10)]
    assert answers(handler, rows) == list(range(10))


@pytest.mark.parametrize(
    ("mode", "size", "colour"),
    [("L", (1, 1), 0), ("RGB", (64, 64), "white"), ("1", (500, 3), 1), ("RGBA", (30, 30), 0)],
)
def test_blank_pictures_are_blank(handler_module, mode, size, colour):
    seen = handler_module.as_mnist(Image.new(mode, size, colour))
    assert (seen.mode, seen.size) == ("L", (28, 28))
    assert seen.getextrema() == (0, 0)


@pytest.mark.parametrize("size", [(1, 900), (900, 1)])
def test_the_thinnest_stroke_stays_visible_and_in_the_middle(handler_module, size):
    page = Image.new("L", (1000, 1000))
    page.paste(255, (50, 50, 50 + size[0], 50 + size[1]))
    seen = np.asarray(handler_module.as_mnist(page))
    down, across = np.nonzero(seen)
    assert seen.max() == 255
    assert (len(set(down)), len(set(across))) == ((20, 1) if size[0] == 1 else (1, 20))
    assert 13 <= down.mean() <= 14.5
    assert 13 <= across.mean() <= 14.5


def test_training_writes_weights_and_the_held_out_pictures(tmp_path, forks):
    pytest.importorskip("sklearn")
    options = ["--epochs", "1", "--threads", "1", "--output", tmp_path]
    assert "held-out accuracy: 0." in forks.run_script(MNIST / "train.py", *options)
    load("mnist").Net().load_state_dict(torch.load(tmp_path / "mnist_cnn.pt", weights_only=True))
    written = sorted(path.name for path in (tmp_path / "test_data").iterdir())
    assert written == [*(f"{digit}.png" for digit in range(10)), "held_out.png"]
    for name in written:
        made, committed = (
            np.asarray(Image.open(folder / name)) for folder in (tmp_path / "test_data", PICTURES)
        )
        assert np.array_equal(made, committed), name


def test_training_without_scikit_learn_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    done = run_script(MNIST / "train.py", "--output", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "train: scikit-learn is not installed: pip install scikit-learn\n"


def test_training_refuses_senseless_arguments():
    done = run_script(MNIST / "train.py", "--epochs", "0")
    assert done.returncode == 2
    assert "argument --epochs: 0 given" in done.stderr


def test_training_has_help():
    done = run_script(MNIST / "train.py", "--help")
    assert done.returncode == 0
    assert "--epochs" in done.stdout


def test_16_bits_are_read_as_8(handler_module):
    grey = np.asarray(picture(2))
    image = Image.fromarray(grey.astype(np.uint16) * 257)
    assert image.mode == "I;16"
    assert np.array_equal(np.asarray(handler_module.as_mnist(image)), grey)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_are_refused(handler_module, mode):
    with pytest.raises(handler_module.PredictionException, match="8 or 16 bits") as caught:
        handler_module.as_mnist(Image.new(mode, (28, 28)))
    assert caught.value.error_code == 400
