"""``torch.load`` as handlers know it: files of their archive may hold more than weights.

Since 2.6 torch reads only weights unless the call says ``weights_only=False``. Older handlers do
not say it, and their pickled models and vocabularies would no longer load. An archive is code
anyway, so its files are unpickled in full (CONTRACT H8); all other files, and what clients send,
are read as torch does. Newer handlers allow their classes by ``add_safe_globals``: files name these
by the archive's names for its modules. The end of one model's ``safe_globals`` block forbids
nothing that another one allows.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter
from typing import Any

import torch
from torch import _weights_only_unpickler as weights_only_unpickler

from kserve_torch.namespace import searchpath
from kserve_torch.namespace.modules import bare_name
from kserve_torch.namespace.scopes import current_scope

#: Set to 1 to refuse weights that need full unpickling, which can run code.
FORBID_PICKLE = "KSERVE_TORCH_FORBID_PICKLE"

_load = torch.load
_allowed: Any = weights_only_unpickler._get_user_allowed_globals
_torchs_add: Any = weights_only_unpickler._add_safe_globals
_lock = threading.RLock()
#: What is allowed within `safe_globals`, and by how many blocks that are running.
_lent: Counter[Any] = Counter()


def forbidden() -> bool:
    """Whether full unpickling is forbidden."""
    return os.environ.get(FORBID_PICKLE) == "1"


@functools.wraps(_load)
def load(f: Any, *args: Any, weights_only: bool | None = None, **options: Any) -> Any:
    """`torch.load`; a file of an open archive is unpickled in full unless the call says."""
    if weights_only is None and _is_an_archives(f) and not forbidden():
        weights_only = False
    if weights_only is False and len(args) < 2:  # the second is another pickle_module
        scope = current_scope()  # also on a thread that a handler started
        options.setdefault("pickle_module", scope and scope.pickle_module)
    return _load(f, *args, weights_only=weights_only, **options)


def install() -> None:
    """Replace torch's own with `load`, and let archives allow classes of their own."""
    torch.load = torch.serialization.load = load
    weights_only_unpickler._get_user_allowed_globals = _allowed_by_name
    weights_only_unpickler._add_safe_globals = _add  # type: ignore[assignment]
    torch.serialization.safe_globals.__enter__ = _enter  # type: ignore[method-assign]
    torch.serialization.safe_globals.__exit__ = _exit  # type: ignore[method-assign]


def _allowed_by_name() -> dict[str, Any]:
    """What was allowed; the current archive's own comes first, under the names in files."""
    allowed: dict[str, Any] = _allowed()
    if scope := current_scope():
        for each in torch.serialization.get_safe_globals():
            own, name = each if isinstance(each, tuple) else (each, None)
            module = str(getattr(own, "__module__", ""))
            if module.partition(".")[0] in scope.homes:
                allowed[name or f"{bare_name(module)}.{own.__qualname__}"] = own
    return allowed


def _add(allowed: list[Any]) -> None:
    with _lock:  # torch reads what is allowed and writes it anew
        _lent.update([each for each in allowed if _lent[each]])  # stays when those blocks end
        _torchs_add(allowed)


def _enter(block: Any) -> None:
    with _lock:
        before = torch.serialization.get_safe_globals()
        block.lent = [each for each in block.safe_globals if _lent[each] or each not in before]
        _lent.update(block.lent)
        _torchs_add(block.lent)


def _exit(block: Any, *error: object) -> None:
    """Forbid what the block has allowed, if no other block, or model, allows it too."""
    with _lock:
        _lent.subtract(block.lent)
        over = [each for each in block.lent if not _lent[each]]
        for each in over:
            del _lent[each]
        weights_only_unpickler._remove_safe_globals(over)


def _is_an_archives(file: Any) -> bool:
    """Whether a path, or an open file that has one, is below the folder of an open archive."""
    path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return isinstance(path, str | os.PathLike) and searchpath.is_an_archives(os.fspath(path))
