"""``torch.load`` as handlers know it: files of their archive may hold more than weights.

Since 2.6 torch reads nothing but weights unless the call says ``weights_only=False``. Handlers that
were written before say nothing, and their pickled models and vocabularies would load no more. An
archive is code anyhow, so what it brings is read in full (CONTRACT H8); all other files, and what
clients send, are read as torch does.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

import torch

from kserve_torch.namespace import searchpath
from kserve_torch.namespace.scopes import calling_scope, thread

#: Set to 1 to refuse weights that only a full unpickling, which can run code, would read.
FORBID_PICKLE = "KSERVE_TORCH_FORBID_PICKLE"

_load = torch.load


def forbidden() -> bool:
    """Whether the operator wants nothing unpickled in full."""
    return os.environ.get(FORBID_PICKLE) == "1"


@functools.wraps(_load)
def load(f: Any, *args: Any, weights_only: bool | None = None, **options: Any) -> Any:
    """`torch.load`, in full where the call does not say and the file is an open archive's."""
    if weights_only is None and _is_an_archives(f) and not forbidden():
        weights_only = False
    if weights_only is False and len(args) < 2:  # the second is another pickle_module
        options.setdefault("pickle_module", _pickle_module())
    return _load(f, *args, weights_only=weights_only, **options)


def install() -> None:
    """Put `load` into the place of torch's own."""
    torch.load = torch.serialization.load = load


def _pickle_module() -> ModuleType | None:
    """Finds the calling archive's classes, also in a thread that the handler started; else None."""
    scope = thread.scope or calling_scope()
    return None if scope is None else scope.pickle_module


def _is_an_archives(file: Any) -> bool:
    """Whether a path, or an open file that has one, is below the folder of an open archive."""
    path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return isinstance(path, str | os.PathLike) and searchpath.is_an_archives(os.fspath(path))
