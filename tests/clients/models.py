"""The models that the clients' tests talk to, and the server that has them."""

from __future__ import annotations

from pathlib import Path

from ..makers import make_archive
from ..server import Server

#: Gives every tensor back, in its datatype and shape, and every v1 instance.
IDENTITY = """
import numpy as np
import torch


class Identity:
    accepts_arrays = True

    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [identity(row) for row in data]


def identity(row):
    if not isinstance(row, dict) or "datatype" not in row:
        return row
    if row["datatype"] == "BYTES":
        array = np.empty(row["shape"], object)
        array.reshape(-1)[:] = flat(row["data"])
        return array
    if row["datatype"] == "BF16":
        return torch.tensor(row["data"]).to(torch.bfloat16)
    return row["data"]


def flat(data):
    if not isinstance(data, list):
        return [bytes(data) if isinstance(data, bytearray) else data]
    return [element for part in data for element in flat(part)]
"""

#: Answers with several named arrays.
NAMED = """
import numpy as np


def handle(data, context):
    if data is None:
        return None
    arrays = [np.asarray(row["data"]) for row in data]
    return [{"doubled": array * 2, "total": array.sum(keepdims=True)} for array in arrays]
"""

#: Answers with a request header, or a request parameter, that its input names; sets headers.
HEADERS = """
def handle(data, context):
    if data is None:
        return None
    answers = []
    for i, row in enumerate(data):
        name = bytes(row["data"]).decode() if isinstance(row["data"], bytearray) else row["data"]
        context.set_response_header(i, "x-asked-for", name)
        answers.append(str(context.get_request_header(i, name)))
    return answers
"""

#: Fails as its input says.
MOODY = """
import time

from ts.utils.util import PredictionException


def handle(data, context):
    if data is None:
        return None
    for row in data:
        what = row["data"]
        what = bytes(what).decode() if isinstance(what, bytearray) else what
        if what == "crash":
            raise RuntimeError("no bananas left")
        if what == "late":
            time.sleep(0.5)
            return ["at last"] * len(data)
        raise PredictionException("as you wish", int(what))
"""

#: Adds an explanation to what `IDENTITY` does not have.
EXPLAINED = """
def handle(data, context):
    if data is None:
        return None
    explain = context.get_request_header(0, "explain") == "True"
    return [f"{'why' if explain else 'what'} {row['data']}" for row in data]
"""

#: Cannot be loaded.
BROKEN = "raise ImportError('no such thing')"

SIGNATURE = """
signature:
  inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]
  outputs: [{name: doubled, datatype: FP32, shape: [-1, 3]}]
"""

STARTED = ("identity_1.mar", "identity_2.mar", "named.mar", "headers.mar", "moody.mar", "why.mar")


def write_store(store: Path) -> Path:
    """A model store with all of them."""
    for version in ("1", "2"):
        _write(store, f"identity_{version}", IDENTITY, modelName="identity", modelVersion=version)
    files = {"model-config.yaml": SIGNATURE}
    _write(store, "named", NAMED, files, configFile="model-config.yaml")
    for name, handler in {
        "headers": HEADERS,
        "moody": MOODY,
        "why": EXPLAINED,
        "extra": EXPLAINED,
        "broken": BROKEN,
    }.items():
        _write(store, name, handler)
    return store


def _write(
    store: Path, file: str, handler: str, files: dict[str, str] | None = None, **model: str
) -> None:
    members = {"modelName": file, **model}
    make_archive(store / f"{file}.mar", {"handler.py": handler, **(files or {})}, **members)


def start(folder: Path, *args: str) -> Server:
    """A server with all models but ``extra`` and ``broken``, which can be loaded later."""
    return Server(write_store(folder / "store"), *args, "--models", *STARTED)
