"""The process's logging, kept as the server set it up, whatever archives' code does to it.

Handlers set up logging as if they had a process of their own: `logging.config` removes the root
logger's handlers and disables all existing loggers, and some set the level of all that there are.
Most do so while they load, some in their first call.
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
    #: Level and propagation of the server's loggers by name; of others they are `_UNSET`.
    own: dict[str, tuple[int, bool]]


_UNSET = (logging.NOTSET, True)
#: What is the server's of the root logger; None if it is not the server's to keep.
_kept: _Kept | None = None


def keep() -> None:
    """Remember the present set-up as the server's."""
    global _kept
    root = logging.getLogger()
    own = {name: (one.level, one.propagate) for name, one in _own_loggers().items()}
    _kept = _Kept(root.level, list(root.handlers), _formats(root.handlers), own)
    loggers.separate(root.handlers)


def restore() -> None:
    """Put the server's set-up back; handlers that others added to the root logger stay."""
    if _kept is None or not _touched(_kept):
        return
    root = logging.getLogger()
    root.setLevel(_kept.level)
    # Ours first: the first handler formats a traceback, and the others reuse its text.
    others = [other for other in root.handlers if other not in _kept.handlers]
    root.handlers[:] = _kept.handlers + others
    for handler, (level, formatter) in zip(_kept.handlers, _kept.formats, strict=True):
        handler.setLevel(level)
        handler.setFormatter(formatter)
    if root.manager.disable:
        logging.disable(logging.NOTSET)
    silenced = _silenced(_kept)
    for name, own in _own_loggers().items():
        own.disabled = False
        if silenced:  # else archives may set the levels of their own
            level, own.propagate = _kept.own.get(name, _UNSET)
            own.setLevel(level)


def _own_loggers() -> dict[str, logging.Logger]:
    found = logging.root.manager.loggerDict.copy().items()
    return {k: v for k, v in found if k.startswith(_OWN) and isinstance(v, logging.Logger)}


def _formats(handlers: Sequence[logging.Handler]) -> list[tuple[int, logging.Formatter | None]]:
    return [(handler.level, handler.formatter) for handler in handlers]


def _silenced(kept: _Kept) -> bool:
    """Whether the level or propagation of all loggers was set: then this one's was, too."""
    return (log.level, log.propagate) != kept.own.get(log.name, _UNSET)


def _touched(kept: _Kept) -> bool:
    """Whether anything changed; checked after every call of a handler."""
    root = logging.getLogger()
    return bool(
        # Whatever disables loggers disables this one too.
        log.disabled
        or _silenced(kept)
        or root.manager.disable
        or root.level != kept.level
        or root.handlers[: len(kept.handlers)] != kept.handlers
        or _formats(kept.handlers) != kept.formats
    )
