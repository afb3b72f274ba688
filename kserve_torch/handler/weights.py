"""Model files: from a path in the archive to something that can be called with tensors.

The file's suffix selects the loader, unless the archive has a model file: then the weights are
loaded into its one class. Errors name files without their folders, because clients see them.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from kserve_torch.errors import LoadFailed
from kserve_torch.runtime import torchload
from kserve_torch.runtime.tying import is_plain

log = logging.getLogger(__name__)

_SHOWN = 3
#: The beginning of a pointer file, which Git without LFS checks out instead of a large file.
_POINTER = b"version https://git-lfs"


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type]:
    """The classes that ``module`` itself defines, by name; only subclasses of ``parent_class``."""
    return [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__
        and (parent_class is None or issubclass(member, parent_class))
    ]


def only_class(module: ModuleType, suits: Callable[[type], bool], wanted: str) -> type[Any]:
    """The one class that a file of an archive defines.

    Of several, which TorchServe refuses, it is the only one that ``suits``: the others may be
    helpers, or parts of it.

    Raises:
        LoadFailed: it defines none, or there is no telling which; says what is ``wanted``.
    """
    classes = list_classes_from_module(module)
    if len(classes) > 1:
        classes = [one for one in classes if suits(one)] or classes
    if len(classes) != 1:
        names = ", ".join(found.__name__ for found in classes) or "none"
        raise LoadFailed(f"{_file_of(module)}: {wanted}, got {names}")
    return classes[0]


def _file_of(module: ModuleType) -> str:
    return f"{module.__name__.rpartition('.')[2]}.py"


def _is_whole_model(found: type) -> bool:
    """Whether a class is a module that can be made as it is; parts of one mostly need arguments."""
    if not issubclass(found, nn.Module):
        return False
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):  # ValueError: an extension's class, which says nothing
        return False
    return True


def load_eager(module: ModuleType, weights: Path | None, device: torch.device) -> nn.Module:
    """The class of a model file, with the state_dict in ``weights`` if there is one.

    Without one its weights are as its class makes them, as with TorchServe; the log says so,
    because the answers do not show it.

    Raises:
        LoadFailed: not exactly one class, or weights that cannot be read or do not fit.
    """
    model: nn.Module = only_class(
        module, _is_whole_model, "exactly one class is wanted as the model"
    )()
    if weights is not None:
        fill(model, load_state(weights, device), weights.name)
    elif isinstance(model, nn.Module) and next(model.parameters(), None) is not None:
        log.warning(
            "%s: no weights file (serializedFile) comes with it: the weights are random, unless "
            "code of the archive loads them",
            _file_of(module),
        )
    return model


def load_state(path: Path, device: torch.device) -> Mapping[str, Any]:
    """The state_dict in a safetensors or torch file, its tensors on ``device``."""
    _require(path)
    if path.suffix == ".safetensors":
        return _load_safetensors(path, device)
    state = load_pickled(path, device)
    if not isinstance(state, dict):
        raise LoadFailed(f"{path.name}: expected a state_dict, found {type(state).__name__}")
    return state


def load_pickled(path: Path, device: torch.device | None) -> Any:
    """What `torch.save` wrote: read as weights only, else unpickled in full (CONTRACT H8).

    Args:
        path: the file.
        device: where its tensors go; None for where they were.

    Raises:
        LoadFailed: the file is damaged, or needs the full unpickling that `FORBID_PICKLE` forbids.
    """
    mmap = zipfile.is_zipfile(path)
    with reading(path):
        try:
            return torch.load(path, map_location=device, weights_only=True, mmap=mmap)
        except pickle.UnpicklingError:
            if torchload.forbidden():
                text = f"needs full unpickling, and {torchload.FORBID_PICKLE}=1 forbids it"
                raise LoadFailed(f"{path.name}: {text}") from None
        log.warning("%s: more than weights, unpickled in full, which can run code", path.name)
        return torchload.load(path, map_location=device, weights_only=False, mmap=mmap)


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
        text = str(error).partition("\n")[0].replace(str(path), path.name)
        raise LoadFailed(f"{path.name}: cannot be read: {text or type(error).__name__}") from error


def fill(model: nn.Module, state: Mapping[str, Any], file: str) -> None:
    """Load ``state`` into ``model``; every key must fit.

    Raises:
        LoadFailed: with the first missing, unexpected and misshapen keys.
    """
    try:
        model.load_state_dict(_with_tied(model, state))
    except (RuntimeError, AttributeError, TypeError) as error:
        text = _mismatch(model.state_dict(), state) or str(error).splitlines()[0]
        raise LoadFailed(f"{file} does not fit {type(model).__name__}: {text}") from error


def _with_tied(model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """``state`` with what it lacks and the model holds under two names: safetensors saves it once.

    Only a plain dict: torch's own state_dicts hold all, and say which versions of the modules they
    are from.
    """
    if type(state) is not dict:
        return state
    own = model.state_dict()
    there = {_place(own[key]): value for key, value in state.items() if key in own}
    lacking = ((key, _place(value)) for key, value in own.items() if key not in state)
    return {**state, **{key: there[place] for key, place in lacking if place in there}}


def _place(value: Any) -> Any:
    is_memory = isinstance(value, torch.Tensor) and is_plain(value) and value.numel()
    return (value.data_ptr(), value.shape, value.stride()) if is_memory else id(value)


def _mismatch(own: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    shapes = [
        f"{key} is {list(state[key].shape)}, the model has {list(value.shape)}"
        for key, value in own.items()
        if isinstance(state.get(key), torch.Tensor) and state[key].shape != value.shape
    ]
    parts = [
        _some("missing ", [key for key in own if key not in state]),
        _some("unexpected ", [str(key) for key in state if key not in own]),
        _some("", shapes),
    ]
    return "; ".join(part for part in parts if part)


def _some(label: str, items: list[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return label + ", ".join(items[:_SHOWN]) + more


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
    warnings.filterwarnings("ignore", message=r"`torch\.jit\.load", category=FutureWarning)
    warnings.filterwarnings("ignore", message=r"`torch\.jit\.load", category=DeprecationWarning)
    model: nn.Module = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]  # torch does not type it
    return model.eval()


def _is_saved_object(path: Path) -> bool:
    """Whether `torch.save` wrote a file; `torch.jit.save` adds a ``constants.pkl`` to the zip."""
    if not zipfile.is_zipfile(path):
        return False
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
    return torch.export.load(path).module().to(device)


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


def _load_safetensors(path: Path, device: torch.device) -> dict[str, torch.Tensor]:
    try:
        safetensors = importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise LoadFailed(f"{path.name}: reading it needs the package safetensors") from error
    with reading(path):
        state: dict[str, torch.Tensor] = safetensors.load_file(path, device=str(device))
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
