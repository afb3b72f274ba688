"""The script behind ``v2/totensor.py`` and ``v2/mnist/totensor.py``."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import openinference
import requestfile


def main(description: str | None, mean: float, std: float) -> None:
    """Write a request with a tensor of each file named on the command line."""
    parser = requestfile.parser(description)
    parser.add_argument("files", nargs="+", type=Path, help="image or UTF-8 text files")
    parser.add_argument("--mean", type=float, default=mean, help="default: %(default)s")
    parser.add_argument("--std", type=float, default=std, help="default: %(default)s")
    openinference.add_options(parser, "mnist")
    options = parser.parse_args()
    if not math.isfinite(options.mean):
        parser.error(f"argument --mean: {options.mean} given; a finite number expected")
    if not 0 < options.std < math.inf:
        parser.error(f"argument --std: {options.std} given; a finite number above 0 expected")
    arrays = (tensor(path, options.mean, options.std) for path in options.files)
    inputs = [openinference.array_input(f"input-{i}", array) for i, array in enumerate(arrays)]
    openinference.write(options.output, inputs, options.form, options.model)


def tensor(path: Path, mean: float, std: float) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
    """Turn a file into numbers.

    Returns:
        Of an image float32 ``[channels, height, width]``: 0..1, less ``mean``, divided by ``std``;
        one channel if it is grey, else three. Of a text int64 ``[bytes]``: its bytes in UTF-8.

    Raises:
        InputError: if the file cannot be read or is neither.
    """
    content = requestfile.read(path)
    image = requestfile.decoded(content)
    if image is None:
        return _text(path, content)
    grey = image.mode in ("1", "L", "LA")
    pixels = np.asarray(image.convert("L" if grey else "RGB"), dtype=np.float32) / 255
    channels = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return ((channels - mean) / std).astype(np.float32)


def _text(path: Path, content: bytes) -> npt.NDArray[np.int64]:
    try:
        content.decode()
    except UnicodeDecodeError:
        raise requestfile.InputError(f"{path}: neither an image nor UTF-8 text") from None
    return np.frombuffer(content, dtype=np.uint8).astype(np.int64)
