"""DenseNetHandler: tensors in, tensors out, both as ``torch.save`` writes them."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import torch

from kserve_torch.errors import BadRow
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.rows import payloads
from kserve_torch.handler.tensors import as_tensor, stack
from kserve_torch.handler.timer import timed
from kserve_torch.runtime.tying import is_plain


class DenseNetHandler(BaseHandler):
    """Answers each row with the model's output for it as a tensor (CONTRACT R6 sends it)."""

    @timed
    def preprocess(self, data: list[Any]) -> Any:
        """Rows with a saved tensor, or with numbers, to a batch.

        Raises:
            BadRow: a row holds neither.
            InvalidInput: the rows have different shapes, or different dtypes in several requests.
        """
        tensors = [load_tensor(index, value) for index, value in enumerate(payloads(data))]
        return stack(tensors, self.context)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """The output's rows, each with its batch dimension of 1."""
        return list(data.split(1))


def load_tensor(index: int, value: Any) -> torch.Tensor:
    """A tensor that a client saved; nothing but tensors is unpickled.

    Raises:
        BadRow: it is not a tensor, or a sparse, nested, quantized or meta one.
    """
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return as_tensor(index, value, torch.float32)
    try:
        _refuse_compressed(value)
        tensor = torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # damaged files raise nearly anything
        raise BadRow(index, "data: not a tensor saved by torch") from error
    if not isinstance(tensor, torch.Tensor):
        raise BadRow(index, f"data: expected one saved tensor, got {type(tensor).__name__}")
    if not is_plain(tensor) or tensor.is_nested:
        raise BadRow(index, "data: expected a tensor of plain numbers in memory")
    if tensor.nbytes > (stored := tensor.untyped_storage().nbytes()):
        text = f"data: a tensor of {tensor.nbytes} bytes with {stored} in the file, save a clone"
        raise BadRow(index, text)
    return tensor


def _refuse_compressed(value: bytes | bytearray | memoryview) -> None:
    """Refuse compressed zip files: torch writes none, and would unpack gigabytes of one."""
    if value[:2] != b"PK":
        return
    with zipfile.ZipFile(io.BytesIO(value)) as file:
        if sum(info.file_size for info in file.infolist()) > len(value):
            raise zipfile.BadZipFile("it is compressed")
