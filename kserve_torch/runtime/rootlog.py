"""The process's logging, kept as the server set it up, whatever archives' code does to it.

Handlers set up logging as if they had a process of their own: `logging.config` removes the root
logger's handlers and disables all existing loggers. Most do so while they load, some in their first
call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from kserve_torch.namespace import loggers

log = logging.getLogger(__name__)

#: Prefixes of the names of the server's own loggers, and of those of archives' modules.
_OWN = ("kserve_torch", "ts.")


class _Kept(NamedTuple):
    level: int
    handlers: list[logging.Handler]
    formats: list[tuple[int, logging.Formatter | None]]


#: What is the server's of the root logger; None if it is not the server's to keep.
_kept: _Kept | None = None


def keep() -> None:
    """Remember the present set-up as the server's."""
    global _kept
    root = logging.getLogger()
    _kept = _Kept(root.level, list(root.handlers), _formats(root.handlers))
    loggers.separate(root.handlers)


def release() -> None:
    """Forget it; `restore` does nothing from then on."""
    global _kept
    _kept = None
    loggers.share()


def restore() -> None:
    """Put the server's set-up back; handlers that others added to the root logger stay."""
    if _kept is None or not _touched(_kept):
        return
    root = logging.getLogger()
    if root.level != _kept.level:
        root.setLevel(_kept.level)
    # Ours first: the first handler formats a traceback, and the others reuse its text.
    others = [other for other in root.handlers if other not in _kept.handlers]
    root.handlers[:] = _kept.handlers + others
    for handler, (level, formatter) in zip(_kept.handlers, _kept.formats, strict=True):
        handler.setLevel(level)
        handler.setFormatter(formatter)
    if root.manager.disable:
        logging.disable(logging.NOTSET)
    for name, other in root.manager.loggerDict.copy().items():
        if name.startswith(_OWN) and isinstance(other, logging.Logger):
            other.disabled = False


def _formats(handlers: Sequence[logging.Handler]) -> list[tuple[int, logging.Formatter | None]]:
    return [(handler.level, handler.formatter) for handler in handlers]


def _touched(kept: _Kept) -> bool:
    """Whether anything changed; checked after every call of a handler."""
    root = logging.getLogger()
    return bool(
        # Whatever disables loggers disables this one too.
        log.disabled
        or root.manager.disable
        or root.level != kept.level
        or root.handlers[: len(kept.handlers)] != kept.handlers
        or _formats(kept.handlers) != kept.formats
    )
