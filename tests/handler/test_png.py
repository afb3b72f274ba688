import io
import random
import struct
import zlib

import pytest
from PIL import Image, PngImagePlugin

from kserve_torch.handler.png import LARGEST, read_plain_png


def seen(image):
    """What a transform can see of an image."""
    return image.mode, image.size, image.tobytes(), image.info, image.format


def pil(data):
    """What PIL's own reader makes of it; None if it refuses."""
    try:
        image = Image.open(io.BytesIO(data))
        image.load()
    except Exception:
        return None
    return seen(image)


def picture(mode="L", size=(28, 28)):
    noise = random.Random(1).randbytes(size[0] * size[1] * len(mode))
    return Image.frombytes(mode, size, noise)


def encoded(image, **options):
    stream = io.BytesIO()
    image.save(stream, "PNG", **options)
    return stream.getvalue()


def chunk(kind, content=b""):
    return struct.pack(">I", len(content)) + kind + content + zlib.crc32(kind + content).to_bytes(4)


def parts(data):
    """Kind and content of each chunk."""
    found, start = [], 8
    while start < len(data):
        stop = start + 8 + int.from_bytes(data[start : start + 4])
        found.append((data[start + 4 : start + 8], data[start + 8 : stop]))
        start = stop + 4
    return found


def file(*chunks):
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in chunks)


@pytest.mark.parametrize("of", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("options", [{}, {"compress_level": 0}, {"optimize": True}])
@pytest.mark.parametrize("size", [(28, 28), (1, 1), (7, 13), (128, 128)])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_it_is_what_pil_reads(mode, size, options, of):
    data = encoded(picture(mode, size), **options)
    image = read_plain_png(of(data))
    assert image is not None
    assert seen(image) == pil(data)


def with_text():
    text = PngImagePlugin.PngInfo()
    text.add_text("Title", "seven")
    return encoded(picture(), pnginfo=text)


def in_two_pieces():
    head, (_, pixels), end = parts(encoded(picture()))
    return file(head, (b"IDAT", pixels[:50]), (b"IDAT", pixels[50:]), end)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encoded(picture("LA")), id="alpha"),
        pytest.param(encoded(picture().convert("P")), id="palette"),
        pytest.param(encoded(picture().convert("1")), id="one bit"),
        pytest.param(encoded(picture().convert("I;16")), id="16 bits"),
        pytest.param(encoded(picture(), transparency=3), id="transparent"),
        pytest.param(encoded(picture(), dpi=(72, 72)), id="resolution"),
        pytest.param(with_text(), id="text"),
        pytest.param(in_two_pieces(), id="two pieces"),
        pytest.param(encoded(picture(size=(LARGEST + 1, 1))), id="large"),
        pytest.param(encoded(picture()) + b"\0", id="more behind it"),
    ],
)
def test_any_other_file_is_left_to_pil(data):
    assert read_plain_png(data) is None
    assert pil(data) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a" + b"\0" * 100,
        encoded(picture())[:16] + encoded(picture())[-12:],
    ],
)
def test_what_is_no_png_is_left_to_pil(data):
    assert read_plain_png(data) is None


def test_pils_limit_of_pixels_holds(monkeypatch):
    data = encoded(picture())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 28 * 28 - 1)
    assert read_plain_png(data) is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read_plain_png(data) is not None


def damaged(chance, good):
    """The file with some bytes replaced, or cut short."""
    data = bytearray(good)
    if chance.random() < 0.2:
        return bytes(data[: chance.randrange(len(data))])
    for _ in range(chance.choice((1, 1, 3))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def damaged_inside(chance, good):
    """The same, with right checksums: only the decoder can tell."""
    head, (_, pixels), end = parts(good)
    if chance.random() < 0.2:
        fields = bytearray(head[1])
        fields[chance.choice((3, 7, 8, 9, 10, 11, 12))] = chance.randrange(40)
        return file((b"IHDR", bytes(fields)), (b"IDAT", pixels), end)
    pixels = damaged(chance, pixels) + chance.randbytes(chance.choice((0, 0, 9)))
    return file(head, (b"IDAT", pixels), end)


@pytest.mark.parametrize("damage", [damaged, damaged_inside])
def test_a_damaged_file_is_what_pil_makes_of_it(damage):
    chance = random.Random(7)
    sources = [encoded(picture(mode, (9, 7))) for mode in ("L", "RGB")]
    read = 0
    for _ in range(2000):
        data = damage(chance, chance.choice(sources))
        image = read_plain_png(data)
        if image is not None:
            assert seen(image) == pil(data)
            read += 1
    assert 0 < read < 2000
