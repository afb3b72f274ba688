"""Weights files: from a path in the archive to weights, or to a model that is complete in its file.

The file's suffix selects the loader, unless the archive has a model file, see `eager`. Errors name
files without their folders, because clients see them.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from kserve_torch.errors import LoadFailed
from kserve_torch.namespace.scopes import import_module
from kserve_torch.runtime import torchload

log = logging.getLogger(__name__)

#: The beginning of a pointer file, which Git without LFS checks out instead of a large file.
_POINTER = b"version https://git-lfs"

#: What torch does not know in a TorchScript model that holds engines of TensorRT.
_TENSORRT = re.compile(r"Unknown (type name|builtin op).*\btensorrt\b")


def load_state(path: Path) -> Mapping[str, Any]:
    """The state_dict in a safetensors or torch file, its tensors in the host's memory."""
    _require(path)
    if path.suffix == ".safetensors":
        return _load_safetensors(path)
    state = load_pickled(path)
    if not isinstance(state, dict):
        raise LoadFailed(f"{path.name}: expected a state_dict, found {type(state).__name__}")
    return state


def load_pickled(path: Path) -> Any:
    """What `torch.save` wrote: read as weights only, else unpickled in full (CONTRACT H8).

    Its tensors are in the host's memory.

    Raises:
        LoadFailed: the file is damaged, or needs the full unpickling that `FORBID_PICKLE` forbids.
    """
    mmap = zipfile.is_zipfile(path)
    with reading(path):
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        except pickle.UnpicklingError:
            if torchload.forbidden():
                text = f"needs full unpickling, and {torchload.FORBID_PICKLE}=1 forbids it"
                raise LoadFailed(f"{path.name}: {text}") from None
        log.warning("%s: more than weights, unpickled in full, which can run code", path.name)
        return torchload.load(path, map_location="cpu", weights_only=False, mmap=mmap)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read ``path`` in the block.

    Raises:
        LoadFailed: instead of whatever a reader raises on a damaged file or a missing package.
    """
    try:
        yield
    except (LoadFailed, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        text = str(error).strip().partition("\n")[0].replace(str(path), path.name)
        raise LoadFailed(f"{path.name}: cannot be read: {text or type(error).__name__}") from error


def load_serialized(path: Path, device: torch.device, suffix: str | None = None) -> Any:
    """A model that is complete in one file: TorchScript, an exported program, ONNX or a ``.so``.

    Args:
        path: the file.
        device: where the model goes.
        suffix: overrides the file's own suffix, unless None.

    Raises:
        LoadFailed: no loader for this suffix, or the file cannot be read.
    """
    _require(path)
    load = LOADERS.get(path.suffix if suffix is None else suffix)
    if load is None:
        raise LoadFailed(
            f"{path.name}: without a model file, weights must be one of {', '.join(LOADERS)}"
        )
    with reading(path):
        return load(path, device)


def load_script(path: Path, device: torch.device) -> nn.Module:
    """A TorchScript module in evaluation mode."""
    if _is_saved_object(path):
        raise LoadFailed(
            f"{path.name}: torch.save wrote it, not torch.jit.save: a state_dict needs a model "
            "file (modelFile in the manifest)"
        )
    # torch deprecates TorchScript, but whoever serves such an archive cannot act on the warning.
    warnings.filterwarnings("ignore", message=r"`torch\.jit\.load")
    try:
        model = _load_script(path, device)
    except RuntimeError as error:
        if not _TENSORRT.search(str(error)):
            raise
        import_module("torch_tensorrt")  # has what the model is made of; TorchServe imports it, too
        model = _load_script(path, device)
    return model.eval()


def _load_script(path: Path, device: torch.device) -> nn.Module:
    model: nn.Module = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]  # torch does not type it
    return model


def _is_saved_object(path: Path) -> bool:
    """Whether `torch.save` wrote a file; `torch.jit.save` adds a ``constants.pkl`` to the zip."""
    with zipfile.ZipFile(path) as file:
        names = {name.rpartition("/")[2] for name in file.namelist()}
    return "data.pkl" in names and "constants.pkl" not in names


def load_program(path: Path, device: torch.device) -> Any:
    """A ``.pt2``: a package of AOTInductor, or a `torch.export` program as a module."""
    with zipfile.ZipFile(path) as package:
        compiled = any("aotinductor" in name for name in package.namelist())
    if compiled:
        return torch._inductor.aoti_load_package(
            str(path), device_index=torch.device(device).index or -1
        )
    # Its code names the devices of the machine that exported it, too.
    return move_to_device_pass(torch.export.load(path), device).module()


def load_shared_object(path: Path, device: torch.device) -> Callable[..., Any]:
    """A ``.so`` of ``torch._export.aot_compile``."""
    loaded: Callable[..., Any] = torch._export.aot_load(str(path), str(device))
    return loaded


def load_onnx(path: Path, device: torch.device) -> Any:
    """An ONNX model as a callable on tensors; needs the extra ``onnx``."""
    from kserve_torch.handler.onnx import OnnxModel

    return OnnxModel(path, device)


LOADERS: dict[str, Callable[[Path, torch.device], Any]] = {
    ".pt": load_script,
    ".pt2": load_program,
    ".onnx": load_onnx,
    ".so": load_shared_object,
}


def _load_safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        safetensors = importlib.import_module("safetensors.torch")
    except ModuleNotFoundError as error:
        raise LoadFailed(f"{path.name}: reading it needs the package safetensors") from error
    with reading(path):
        state: dict[str, torch.Tensor] = safetensors.load_file(path)
    return state


def _require(path: Path) -> None:
    if not path.is_file():
        raise LoadFailed(f"{path.name}: named in the manifest, not in the archive")
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise LoadFailed(
                f"{path.name}: a pointer of Git LFS stands for the weights; make the archive again "
                "after 'git lfs pull'"
            )
