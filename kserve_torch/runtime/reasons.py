"""Exceptions of an archive's code as our errors: one line that a client may read."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from kserve_torch.archives.manifest import Manifest
from kserve_torch.errors import HandlerError, LoadFailed, OutOfMemory, PredictionError, ServingError
from kserve_torch.handler.blame import last_line
from kserve_torch.namespace.scopes import PREFIX
from kserve_torch.ts.utils.util import PredictionException

_LENGTH = 500

#: An absolute path, also as a file URL, but no other URL and no fraction; its last part stays.
#: Folders may have spaces in their names, so words before a further slash belong to it.
_PATH = re.compile(
    r"(?<![\w.:/])(?:file://)?/(?:[^\s/'\"<>:,;()](?:[^/'\"<>:,;()]*[^\s/'\"<>:,;()])?/)+"
    r"([^\s/'\"<>:,;()]*)"
)
#: Colours and memory addresses.
_NOISE = re.compile(r"\x1b\[[\d;]*m| at 0x[\da-fA-F]+(?=>)")
_NAMESPACE = re.compile(re.escape(PREFIX) + r"\d+\.?")

#: What RuntimeErrors of torch say when memory ran out; newer ones have a class of their own.
_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "can't allocate memory",
    "ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "HIP out of memory",
)

#: What packages say that were compiled for another NumPy, such as OpenCV's before 4.10 for NumPy 1.
_NUMPY = ("multiarray failed to import", "numpy.dtype size changed")

#: How Python refuses `signal.signal` in a thread.
_SIGNALS = "signal only works in main thread"

_INSTALL = "; install_py_dep_per_model=true installs what the archive's requirements name"
_REQUIREMENTS = "requirements.txt"
_UNNAMED = (
    f"; the manifest does not name {_REQUIREMENTS} (torch-model-archiver's --requirements-file, "
    "not --extra-files)"
)


def handler_failure(error: BaseException) -> ServingError:
    """The client's error if its request made the handler raise ``error`` (CONTRACT R7, T-28)."""
    with suppress(Exception):  # an archive's class may lack what its base class promises
        if isinstance(error, ServingError) and isinstance(error.message, str):
            return error
        if isinstance(error, PredictionException):
            return PredictionError(_text(error.message), _status(error.error_code))
        if ran_out_of_memory(error):
            return OutOfMemory(f"out of memory: {brief(error)}")
        if isinstance(error, SystemExit):
            return HandlerError(f"the handler called sys.exit({_clean(_text(error.code, repr))})")
    return HandlerError(brief(error))


def load_failure(
    error: BaseException, root: Path, manifest: Manifest, installs: bool = True
) -> ServingError:
    """The reason why the archive at ``root`` cannot be served (CONTRACT H6).

    With ``installs`` packages of archives are installed.
    """
    if isinstance(error, ServingError):
        return type(error)(_clean(error.message)) if isinstance(error, LoadFailed) else error
    if ran_out_of_memory(error):
        return OutOfMemory(f"out of memory: {brief(error)}")
    if isinstance(error, SyntaxError) and error.filename:
        file = os.path.basename(error.filename)
        return LoadFailed(f"{file}, line {error.lineno}: {type(error).__name__}: {error.msg}")
    where = _where(error, root)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return LoadFailed(
            f"{where}the package {error.name!r} is neither in the archive nor installed"
            f"{_requirements_hint(root, manifest, installs)}"
        )
    missing = _missing_file(root, manifest)
    if missing is not None:
        return LoadFailed(missing)
    if isinstance(error, FileNotFoundError) and error.filename:
        return LoadFailed(f"{where}file not found: {os.path.basename(str(error.filename))}")
    if isinstance(error, ValueError) and str(error).startswith(_SIGNALS):
        return LoadFailed(
            f"{where}handlers run on threads, and signal.signal works in the main thread only: "
            "leave it out, or catch its ValueError"
        )
    if any(sign in _text(error) for sign in _NUMPY):
        return LoadFailed(
            f"{where}{brief(error)}: a package was compiled for another NumPy than the server's, "
            f"{np.__version__}; require a newer version of it"
        )
    if isinstance(error, SystemExit):
        return LoadFailed(f"{where}called sys.exit({_clean(_text(error.code, repr))})")
    return LoadFailed(where + brief(error))


def _requirements_hint(root: Path, manifest: Manifest, installs: bool) -> str:
    """Why the archive's requirements did not help, if it has any."""
    if manifest.requirements_file is not None:
        return "" if installs else _INSTALL
    return _UNNAMED if (root / _REQUIREMENTS).is_file() else ""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that the machine or the device has no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in _text(error) for sign in _MEMORY)


def forget_frames(error: BaseException) -> None:
    """Let go of what an error's tracebacks, and those of its causes, hold: batches, weights."""
    for one in _causes(error):
        traceback.clear_frames(one.__traceback__)


def forget_tracebacks(error: BaseException) -> None:
    """Let go of the tracebacks themselves once they are logged.

    Their frames lead to those that called them, which hold the batch and the error: what is in such
    a circle stays in memory until Python looks for garbage.
    """
    for one in _causes(error):
        one.__traceback__ = None


def _causes(error: BaseException | None) -> list[BaseException]:
    """An error and its causes, each once."""
    causes: list[BaseException] = []
    while error is not None and not any(error is one for one in causes):
        causes.append(error)
        error = error.__context__ if error.__cause__ is None else error.__cause__
    return causes


def brief(error: BaseException) -> str:
    """``<Type>: <text>`` on one line, without the server's paths or a traceback."""
    text = _text(error).strip()
    if "Traceback" in text:
        text = last_line(text)
    text = _clean(text)
    kind = type(error).__name__
    return f"{kind}: {text}" if text and not text.startswith(f"{kind}:") else text or kind


def _text(value: object, convert: Callable[[object], str] = str) -> str:
    try:
        return convert(value)
    except BaseException:  # an archive's exception class may do anything, even exit
        return ""


def _clean(text: str) -> str:
    # Cut first: a text may hold a whole tensor.
    text = " ".join(_NOISE.sub("", text[: 10 * _LENGTH]).split())
    text = _NAMESPACE.sub("", _PATH.sub(r"\1", text))
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}..."


def _status(code: object) -> int:
    # Below 200 it would not be a final response (RFC 9110 15.2).
    return code if isinstance(code, int) and 200 <= code <= 599 else 500


def _where(error: BaseException, root: Path) -> str:
    """``handler.py, line 12: ``, the innermost place in the archive's own files; "" if none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(root)]
    if not own:
        return ""
    return f"{Path(own[-1].filename).relative_to(root)}, line {own[-1].lineno}: "


def _missing_file(root: Path, manifest: Manifest) -> str | None:
    """A file that the manifest names and the archive lacks explains most failures to load."""
    for file in (manifest.model_file, manifest.serialized_file):
        if file is not None and not (root / file).is_file():
            return f"{file}: named in the manifest, not in the archive"
    return None
