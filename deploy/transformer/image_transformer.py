"""Pictures in, tensors out: an InferenceService's transformer in front of a PyTorch predictor.

::

    client --- pictures ---> transformer --- tensors ---> predictor
           <-- as it is ---              <-- answer -----

A v1 instance is ``{"data": "<base64>"}`` or ``{"image": {"b64": "<base64>"}}`` and becomes
``{"data": [[[...]]]}``. A v2 BYTES tensor holds pictures, raw or in base64; each becomes an FP32
tensor of its own, because the predictor takes one tensor as one row. What is no picture, such as
numbers, passes unchanged.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kserve
import numpy as np
from kserve import InferInput, InferRequest
from kserve.errors import InvalidInput
from PIL import Image, UnidentifiedImageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the model expects of a picture.

    Attributes:
        size: width and height in pixels.
        mode: Pillow's name of the colours: ``L`` is grey, ``RGB`` colour.
        mean: subtracted from the values 0 to 1, one per channel or one for all.
        deviation: divides what is left.
    """

    size: tuple[int, int] = (28, 28)
    mode: str = "L"
    mean: tuple[float, ...] = (0.1307,)
    deviation: tuple[float, ...] = (0.3081,)

    def tensor(self, picture: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A picture's file as a normalised array of channels, height, width.

        Raises:
            ValueError: the bytes are not a picture.
        """
        try:
            with Image.open(io.BytesIO(picture)) as image:
                resized = image.convert(self.mode).resize(self.size)
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise ValueError("not a picture that can be read") from error
        values = np.asarray(resized, dtype=np.float32).reshape(*resized.size[::-1], -1) / 255
        mean = np.array(self.mean, dtype=np.float32)
        deviation = np.array(self.deviation, dtype=np.float32)
        return np.ascontiguousarray(((values - mean) / deviation).transpose(2, 0, 1))


class ImageTransformer(kserve.Model):  # type: ignore[misc]  # kserve has no types
    """Decodes and normalises pictures and passes the predictor's answer on.

    Args:
        name: the predictor's model.
        form: what the model expects.
        predictor_host: where explanations are asked for; predictions go by kserve's own settings.
        use_ssl: whether it is asked by https.
    """

    def __init__(
        self, name: str, form: Form, predictor_host: str | None = None, use_ssl: bool = False
    ) -> None:
        super().__init__(name)
        self.explainer_host = predictor_host
        # kserve.Model.explain reads this name, which kserve.Model does not define.
        self.use_ssl = use_ssl
        self.form = form
        self.ready = True

    async def preprocess(
        self, payload: dict[str, Any] | InferRequest, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any] | InferRequest:
        """The request with tensors in the place of pictures.

        Raises:
            InvalidInput: a picture cannot be read; the message names it.
        """
        if isinstance(payload, InferRequest):
            payload.inputs = [tensor for given in payload.inputs for tensor in self._tensors(given)]
            return payload
        instances = payload.get("instances")
        if not isinstance(instances, list):
            raise InvalidInput('Expected "instances" to be a list')
        rows = [self._row(row, f"instances[{i}]") for i, row in enumerate(instances)]
        return {**payload, "instances": rows}

    def _row(self, row: Any, place: str) -> Any:
        if not isinstance(row, dict):
            return row
        if "image" in row:
            image, place = row["image"], f"{place}.image.b64"
            text = image.get("b64") if isinstance(image, dict) else None
        else:
            text, place = row.get("data"), f"{place}.data"
        if isinstance(text, list):
            return row
        return {"data": self._array(text, place).tolist()}

    def _tensors(self, given: InferInput) -> list[InferInput]:
        if given.datatype != "BYTES":
            return [given]
        pictures = _elements(given)
        return [
            self._tensor(given.name, i, picture, len(pictures))
            for i, picture in enumerate(pictures)
        ]

    def _tensor(self, name: str, index: int, picture: Any, count: int) -> InferInput:
        array = self._array(picture, f"inputs.{name}[{index}]")
        made = InferInput(name if count == 1 else f"{name}-{index}", list(array.shape), "FP32")
        made.set_data_from_numpy(array, binary_data=False)
        return made

    def _array(self, picture: Any, place: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        try:
            return self.form.tensor(_decoded(picture))
        except ValueError as error:
            raise InvalidInput(f"{place}: {error}") from error


def _elements(given: InferInput) -> list[Any]:
    data = given.data
    if data is None or isinstance(data, bytes | bytearray):
        return [bytes(each) for each in given.as_numpy().ravel()]
    return list(data) if isinstance(data, Sequence) and not isinstance(data, str) else [data]


def _decoded(picture: Any) -> bytes:
    """A picture's file: text and bytes of text are base64, other bytes are the file itself."""
    if isinstance(picture, bytes | bytearray) and not picture.isascii():
        return bytes(picture)
    if not isinstance(picture, str | bytes | bytearray):
        raise ValueError(f"expected a picture in base64, got {type(picture).__name__}")
    try:
        return base64.b64decode(picture, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("not valid base64") from error


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line: kserve's flags, which name the predictor, and the picture's form."""
    parser = argparse.ArgumentParser(
        parents=[kserve.model_server.parser], conflict_handler="resolve"
    )
    parser.add_argument("--image_size", type=int, default=28, help="edge of the picture in pixels")
    parser.add_argument("--image_mode", choices=("L", "RGB"), default="L", help="grey or colour")
    parser.add_argument("--mean", type=_numbers, default=(0.1307,), help="per channel, by commas")
    parser.add_argument("--deviation", type=_numbers, default=(0.3081,), help="likewise")
    args = parser.parse_args(argv)
    mode = args.image_mode  # a letter for each channel
    for name in ("mean", "deviation"):
        # NumPy would make a grey picture one of three channels.
        if (count := len(getattr(args, name))) not in (1, len(mode)):
            parser.error(f"argument --{name}: {count} numbers given, for --image_mode {mode}")
    return args


def transformer(args: argparse.Namespace) -> ImageTransformer:
    """The transformer that the command line asks for."""
    form = Form(
        size=(args.image_size, args.image_size),
        mode=args.image_mode,
        mean=args.mean,
        deviation=args.deviation,
    )
    return ImageTransformer(
        args.model_name, form, args.predictor_host, use_ssl=args.predictor_use_ssl
    )


if __name__ == "__main__":
    kserve.ModelServer().start([transformer(arguments())])
