"""What is sent, and the right answers.

A workload is a set of different requests, with the row that the handler sees of each. The right
answer to a request is the handler's result for that row alone, without a server.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from PIL import Image

from benchmarks.peers import V1_EXPLAIN, V1_PREDICT, V2_BINARY, V2_JSON

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "benchmarks" / "models"
DIGITS = sorted((ROOT / "handlers" / "mnist" / "test_data").glob("?.png"))
HEADER_LENGTH = "Inference-Header-Content-Length"
#: Tolerated difference of numbers from the handler's own, relative to the largest one: batches of
#: other sizes round differently.
TOLERANCE = 1e-3

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body and the headers that go with it."""

    content: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one kind.

    Attributes:
        name: for tables and the command line.
        store: which archive answers; also the model's name.
        route: the kind of request, as `Peer.routes` has it.
        bodies: the requests.
        rows: the row that the handler sees of each.
        read: extracts the one result from an answer to request ``i``; raises if there is none.
    """

    name: str
    store: str
    route: str
    bodies: Sequence[Body]
    rows: Sequence[Any]
    read: Callable[[int, bytes], Any]

    @property
    def explains(self) -> bool:
        """Whether explanations are asked for."""
        return self.route == V1_EXPLAIN

    def fault(self, index: int, status: int, body: bytes, expected: Any) -> str | None:
        """What is wrong with an answer to request ``index``; None if nothing is."""
        if status != 200:
            return f"status {status}: {body[:200]!r}"
        try:
            got = self.read(index, body)
        except (ValueError, KeyError, TypeError) as error:
            return f"{type(error).__name__}: {error}: {body[:200]!r}"
        if alike(got, expected):
            return None
        return f"{str(got)[:100]} instead of {str(expected)[:100]}"


def workloads() -> dict[str, Workload]:
    """All of them, by name."""
    digits = [{"data": base64.b64encode(path.read_bytes()).decode()} for path in DIGITS]
    photos = [{"data": base64.b64encode(_photo(seed)).decode()} for seed in range(8)]
    small = [_normalised(path) for path in DIGITS]
    large = [_noise(seed) for seed in range(8)]
    made = (
        _v1("v1", "mnist", digits),
        _v1("explain", "mnist", digits, V1_EXPLAIN),
        _v2("v2", "mnist", small),
        _v2("mean-json", "mean", large),
        _v2("mean-binary", "mean", large, V2_BINARY),
        _v1("resnet", "resnet18", photos),
    )
    return {workload.name: workload for workload in made}


def _v1(name: str, store: str, rows: Sequence[Any], route: str = V1_PREDICT) -> Workload:
    key = "explanations" if route == V1_EXPLAIN else "predictions"

    def read(index: int, body: bytes) -> Any:
        (result,) = json.loads(body)[key]
        return result

    bodies = [Body(json.dumps({"instances": [row]}).encode()) for row in rows]
    return Workload(name=name, store=store, route=route, bodies=bodies, rows=rows, read=read)


def _v2(name: str, store: str, arrays: Sequence[Array], route: str = V2_JSON) -> Workload:
    body = _binary_body if route == V2_BINARY else _json_body
    return Workload(
        name=name,
        store=store,
        route=route,
        bodies=[body(index, array) for index, array in enumerate(arrays)],
        rows=[{"data": array} for array in arrays],
        read=_read_v2,
    )


def _read_v2(index: int, body: bytes) -> Any:
    answer = json.loads(body)
    if answer["id"] != str(index):
        raise ValueError(f"id: {answer['id']!r} instead of {str(index)!r}")
    (output,) = answer["outputs"]
    (result,) = output["data"]
    return result


def _tensor(array: Array) -> dict[str, Any]:
    return {"name": "input-0", "shape": list(array.shape), "datatype": "FP32"}


def _json_body(index: int, array: Array) -> Body:
    tensor = {**_tensor(array), "data": array.ravel()}
    request = {"id": str(index), "inputs": [tensor]}
    # orjson writes the shortest digits of a float32; tolist() would give twice as many.
    return Body(orjson.dumps(request, option=orjson.OPT_SERIALIZE_NUMPY))


def _binary_body(index: int, array: Array) -> Body:
    tensor = {**_tensor(array), "parameters": {"binary_data_size": array.nbytes}}
    head = json.dumps({"id": str(index), "inputs": [tensor]}).encode()
    kind = "application/octet-stream"
    return Body(head + array.tobytes(), {"Content-Type": kind, HEADER_LENGTH: str(len(head))})


def _normalised(path: Path) -> Array:
    """A digit as the network reads it: float32 ``[1, 28, 28]``."""
    pixels = np.asarray(Image.open(path).convert("L"), dtype=np.float32) / 255
    return ((pixels - 0.1307) / 0.3081)[np.newaxis].astype(np.float32)


def _noise(seed: int) -> Array:
    """Float32 ``[1, 3, 224, 224]``, rounded to three decimals; the mean depends on the seed."""
    noise = np.random.default_rng(seed).uniform(size=(1, 3, 224, 224)) + seed
    return noise.astype(np.float32).round(3)


def _photo(seed: int) -> bytes:
    """A JPEG of 224 x 224: coloured blobs whose size depends on the seed."""
    cells = np.random.default_rng(seed).integers(0, 256, (2 + 3 * seed, 2 + 3 * seed, 3), np.uint8)
    image = Image.fromarray(cells).resize((224, 224), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def alike(got: Any, expected: Any) -> bool:
    """Whether an answer is the handler's: equal, numbers within `TOLERANCE`."""
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(alike(got[key], value) for key, value in expected.items())
        )
    if isinstance(expected, int):
        return bool(got == expected)
    try:
        numbers, wanted = np.asarray(got, dtype=float), np.asarray(expected, dtype=float)
    except (TypeError, ValueError):
        return False
    return numbers.shape == wanted.shape and bool(
        np.abs(numbers - wanted).max() <= TOLERANCE * np.abs(wanted).max()
    )
