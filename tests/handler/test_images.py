import base64
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from kserve_torch.errors import BadRow, InvalidInput
from kserve_torch.handler.images import LARGE, ToRGB, decode_image, decode_images, to_tensors

TO_TENSOR = transforms.ToTensor()
IMAGENET = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
GREY = transforms.Normalize((0.1307,), (0.3081,))


def images(png, count, mode="L", size=(8, 8)):
    return [decode_image(0, png(mode, size, seed=seed)) for seed in range(count)]


@pytest.mark.parametrize("count", [1, 2, 16])
@pytest.mark.parametrize("size", [(8, 8), (5, 9), (200, 150)])
@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("L", [TO_TENSOR]),
        ("L", [TO_TENSOR, GREY]),
        ("L", [transforms.Lambda(lambda image: image.rotate(90)), TO_TENSOR, GREY]),
        ("RGB", [TO_TENSOR]),
        ("RGB", [TO_TENSOR, GREY]),
        ("RGB", [TO_TENSOR, IMAGENET]),
        ("RGB", [transforms.Resize(6), transforms.CenterCrop(4), TO_TENSOR, IMAGENET]),
        ("RGB", [transforms.Grayscale(), TO_TENSOR]),
    ],
)
def test_a_whole_batch_gives_torchvisions_tensors_to_the_bit(png, count, size, mode, steps):
    processing = transforms.Compose(steps)
    batch = images(png, count, mode, size)
    result = to_tensors(batch, processing)
    expected = torch.stack([processing(image) for image in batch])
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, expected)
    assert result.stride() == expected.stride()
    assert result.dtype == expected.dtype


def test_in_double_precision(png):
    torch.set_default_dtype(torch.float64)
    try:
        test_a_whole_batch_gives_torchvisions_tensors_to_the_bit(
            png, 2, (5, 9), "RGB", [TO_TENSOR, IMAGENET]
        )
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_table_does_not_keep_what_another_handler_has_set(png, monkeypatch):
    """It is made within a call whose default dtype another handler may change at any time."""
    processing = transforms.Compose([TO_TENSOR, transforms.Normalize((0.3,), (0.6,))])
    batch = images(png, 2, "L")
    expected = torch.stack([processing(image) for image in batch])
    dtypes = iter([torch.float32])
    monkeypatch.setattr(torch, "get_default_dtype", lambda: next(dtypes, torch.float64))
    assert torch.equal(to_tensors(batch, processing), expected)
    monkeypatch.undo()
    assert torch.equal(to_tensors(batch, processing), expected)


@pytest.mark.parametrize("size", [(8, 8), (200, 150)])
def test_beside_a_default_device(png, size):
    processing = transforms.Compose([TO_TENSOR, transforms.Normalize((0.2,), (0.4,))])
    batch = images(png, 2, "L", size)
    expected = torch.stack([processing(image) for image in batch])
    with torch.device("meta"):
        result = to_tensors(batch, processing)
    assert torch.equal(result, expected)


def test_what_is_looked_up_may_be_written_into(png):
    processing = transforms.Compose([TO_TENSOR, GREY])
    for mode in ("L", "RGB"):
        batch = images(png, 2, mode)
        first = to_tensors(batch, processing).clone()
        to_tensors(batch, processing).zero_()
        assert to_tensors(batch, processing).equal(first)


class Mine(transforms.ToTensor):
    def __call__(self, image):
        return super().__call__(image) + 1


@pytest.mark.parametrize(
    "processing",
    [
        TO_TENSOR,
        transforms.Compose([Mine()]),
        transforms.Compose([TO_TENSOR, GREY, GREY]),
        transforms.Compose([TO_TENSOR, lambda tensor: tensor * 2]),
        transforms.Compose([np.array, TO_TENSOR]),
        transforms.Compose(
            [TO_TENSOR, transforms.Normalize(torch.tensor([0.5]), torch.tensor([2.0]))]
        ),
        transforms.Compose([TO_TENSOR, transforms.Normalize([torch.tensor(0.5)], [[2.0]])]),
        transforms.Compose([TO_TENSOR, transforms.Normalize(0.5, 2.0)]),
    ],
)
def test_any_other_transform_is_called_image_by_image(png, processing):
    batch = images(png, 2)
    result = to_tensors(batch, processing)
    assert isinstance(result, list)
    assert all(torch.equal(r, processing(i)) for r, i in zip(result, batch, strict=True))


@pytest.mark.parametrize("mode", ["1", "I;16", "LA", "RGBA", "P"])
def test_other_modes_go_through_torchvision(png, mode):
    buffer = images(png, 1)[0].convert("RGB").convert("L" if mode == "I;16" else mode)
    image = Image.new("I;16", (8, 8), 300) if mode == "I;16" else buffer
    result = to_tensors([image], transforms.Compose([TO_TENSOR]))
    assert torch.equal(result[0], TO_TENSOR(image))


def test_images_of_several_sizes_or_modes(png):
    grey, small, colour = *images(png, 1), *images(png, 1, size=(4, 4)), *images(png, 1, "RGB")
    for batch, shapes in (
        ([grey, small], [(1, 8, 8), (1, 4, 4)]),
        ([grey, colour], [(1, 8, 8), (3, 8, 8)]),
    ):
        result = to_tensors(batch, transforms.Compose([TO_TENSOR]))
        assert [tuple(tensor.shape) for tensor in result] == shapes


def test_a_normalize_that_torchvision_refuses_is_refused_as_there(png):
    processing = transforms.Compose([TO_TENSOR, transforms.Normalize((0.5,), (0.0,))])
    with pytest.raises(ValueError, match="zero"):
        to_tensors(images(png, 1), processing)


def test_bytes_and_base64_of_all_kinds(png):
    data = png()
    text = base64.b64encode(data).decode()
    wrapped = base64.encodebytes(data).decode()
    for form in (data, bytearray(data), memoryview(data), text, wrapped):
        assert (
            decode_image(0, form).tobytes()
            == Image.frombytes("L", (8, 8), decode_image(0, data).tobytes()).tobytes()
        )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("@@@", "data: not valid base64"),
        ("abc", "data: not valid base64"),
        ("nät", "data: not valid base64"),
        (base64.b64encode(b"hello").decode(), "data: not a decodable image"),
        (b"hello", "data: not a decodable image"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "data: not a decodable image"),
        (b"", "data: not a decodable image"),
    ],
)
def test_what_is_no_image(data, reason):
    with pytest.raises(BadRow) as caught:
        decode_image(3, data)
    assert (caught.value.index, caught.value.reason) == (3, reason)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_no_cut_off_or_flipped_file_raises_anything_else(png, format):
    buffer = io.BytesIO()
    images(png, 1, "RGB", (16, 16))[0].save(buffer, format)
    whole = buffer.getvalue()
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        damaged = whole[:length] + bytes([whole[length] ^ 0xFF]) + whole[length + 1 :]
        for data in (whole[:length], damaged):
            with suppress(BadRow):
                decode_image(0, data)


def test_decompression_bombs_are_refused(png, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(BadRow, match="too many pixels"):
        decode_image(0, png())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode_image(0, png()).size == (8, 8)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [24, [24]])
def test_a_strip_that_resize_would_make_a_bomb_is_refused(png, monkeypatch, pool, threads, size):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 24 * 24 * 10)
    monkeypatch.setattr("kserve_torch.handler.images.LARGE", 0)
    colours = [ToRGB(), transforms.Grayscale()]
    processing = transforms.Compose([*colours, transforms.Resize(size), TO_TENSOR])
    rows = {3: png(size=(2, 20)), 5: png(size=(21, 2))}
    pool = pool if threads > 1 else None
    with pytest.raises(BadRow, match="row 5: data: the image has too many pixels"):
        decode_images(rows, processing, pool)
    images, rest = decode_images({3: rows[3]}, processing, pool)
    assert to_tensors(images, rest).shape == (1, 1, 240, 24)
    for first in (
        transforms.CenterCrop(8),
        transforms.Resize((24, 24)),
        transforms.Resize(24, max_size=48),
    ):
        decode_images(rows, transforms.Compose([first, transforms.Resize(size)]), pool)
    decode_images(rows, TO_TENSOR, pool)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    decode_images(rows, processing, pool)


def test_to_rgb(png):
    grey = images(png, 1)[0]
    colour = grey.convert("RGB")
    for mode in ("L", "P", "RGBA", "CMYK"):
        image = colour.convert(mode)
        assert ToRGB()(image) == image.convert("RGB")
    assert ToRGB()(colour) is colour
    assert repr(ToRGB()) == "ToRGB()"


def test_an_image_that_does_not_fit_into_memory_is_none_that_is_damaged(png, monkeypatch):
    def full(file):
        raise MemoryError

    monkeypatch.setattr(Image, "open", full)
    with pytest.raises(MemoryError):
        decode_image(0, png("RGBA"))


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_16_bits_to_rgb(dtype):
    """Their upper halves: PIL would take all that is above 255 for white."""
    grey = np.arange(0, 65536, 1024).reshape(8, 8).astype(dtype)
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, "TIFF")
    image = decode_image(0, buffer.getvalue())
    assert image.mode.startswith("I;16")
    rgb = np.asarray(ToRGB()(image))
    assert (rgb == (grey // 256)[..., None]).all()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_to_rgb(mode):
    refusal = "data: expected an image of 8 or 16 bits a channel"
    with pytest.raises(InvalidInput, match=refusal):
        ToRGB()(Image.new(mode, (8, 8)))
    buffer = io.BytesIO()
    Image.new(mode, (8, 8)).save(buffer, "TIFF")
    with pytest.raises(BadRow, match=f"row 3: {refusal}"):
        decode_images({3: buffer.getvalue()}, transforms.Compose([ToRGB()]), None)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def photos():
    """JPEG files of several sizes, all `LARGE`."""
    noise = np.random.default_rng(0)
    files = []
    for height, width in [(270, 360), (360, 270), (300, 300), (240, 600)]:
        buffer = io.BytesIO()
        pixels = noise.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(buffer, "JPEG", quality=95)
        files.append(buffer.getvalue())
    assert min(map(len, files)) >= LARGE
    return files


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([ToRGB(), transforms.Resize(48), transforms.CenterCrop(40), TO_TENSOR, IMAGENET], 2),
        ([transforms.Grayscale(), transforms.Pad(3), transforms.Lambda(np.array), TO_TENSOR], 2),
        ([transforms.RandomHorizontalFlip(), transforms.Resize(48), TO_TENSOR], 3),
        ([TO_TENSOR], 1),
    ],
)
def test_threads_give_the_same_images_in_the_same_order(pool, photos, steps, left):
    processing = transforms.Compose(steps)
    begun, rest = decode_images(dict(enumerate(photos)), processing, pool)
    assert rest.transforms == steps[-left:]
    for data, image in zip(photos, begun, strict=True):
        torch.manual_seed(1)
        expected = processing(decode_image(0, data))
        torch.manual_seed(1)
        assert torch.equal(rest(image), expected)


def test_large_images_are_read_on_several_threads_at_once(pool, photos, monkeypatch):
    both = threading.Barrier(2, timeout=30)  # passed only by two at the same moment
    image_open = Image.open

    def meet(file):
        both.wait()
        return image_open(file)

    monkeypatch.setattr(Image, "open", meet)
    images, _ = decode_images(dict(enumerate(photos)), TO_TENSOR, pool)
    assert len(images) == len(photos)


def test_a_transform_of_ones_own_stays_on_the_calling_thread(pool, photos):
    seen = set()

    class Own(transforms.Resize):
        def forward(self, image):
            seen.add(threading.current_thread())
            return super().forward(image)

    processing = transforms.Compose([ToRGB(), Own((20, 20)), TO_TENSOR])
    images, rest = decode_images(dict(enumerate(photos)), processing, pool)
    assert to_tensors(images, rest).shape == (4, 3, 20, 20)
    assert seen == {threading.main_thread()}


class Refusing(ThreadPoolExecutor):
    def submit(self, *args, **kwargs):
        raise AssertionError("a thread was asked")


def test_small_or_single_images_are_read_where_they_are(png, photos):
    for encoded in (dict(enumerate([png(), png()])), {7: photos[0]}, {}):
        images, rest = decode_images(encoded, TO_TENSOR, pool=Refusing())
        assert (len(images), rest) == (len(encoded), TO_TENSOR)
    with pytest.raises(AssertionError, match="a thread was asked"):
        decode_images(dict(enumerate([png(), png()])), TO_TENSOR, Refusing(), large=8)


def test_threads_name_the_bad_row(pool, photos):
    encoded = {2: photos[0], 5: photos[1][: len(photos[1]) // 2], 6: photos[2]}
    with pytest.raises(BadRow, match="not a decodable image") as caught:
        decode_images(encoded, TO_TENSOR, pool)
    assert caught.value.index == 5
