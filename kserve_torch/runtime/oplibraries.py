"""``torch.ops.load_library`` for several archives: torch knows one operator per name.

A library that registers one again ends the process. So of equal files, such as those of two models
that bring the same library, or of one that is loaded again, only the first is loaded.
"""

from __future__ import annotations

import functools
import mmap
import os
import threading
from hashlib import sha256
from typing import Any, NamedTuple

import torch

_Ops: Any = type(torch.ops)
_load = _Ops.load_library
_lock = threading.Lock()


class _Library(NamedTuple):
    name: str
    #: Of the operators that it has registered.
    namespaces: set[str]


#: The libraries that have been loaded, by a digest of the file.
_loaded: dict[bytes, _Library] = {}


def install() -> None:
    """Replace torch's own with `load_library`."""
    _Ops.load_library = load_library


@functools.wraps(_load)
def load_library(ops: Any, path: str | os.PathLike[str]) -> None:
    """``torch.ops.load_library``, but once for all equal files.

    Raises:
        RuntimeError: another file of that name has registered operators of this one's.
    """
    name = os.path.basename(path)
    with _lock, open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
        digest = sha256(text).digest()
        if digest in _loaded:
            return
        for other in _loaded.values():
            named = (text.find(f"{each}\0".encode()) >= 0 for each in other.namespaces)
            if name == other.name and any(named):
                raise RuntimeError(
                    f"another model, or another version of this one, has loaded another {name}: "
                    "torch knows one operator of each name in a process"
                )
        before = _operators()
        _load(ops, path)
        _loaded[digest] = _Library(name, {n.partition("::")[0] for n in _operators() - before})


def _operators() -> set[str]:
    return set(torch._C._dispatch_get_all_op_names())
