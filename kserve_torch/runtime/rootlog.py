"""The process's logging, kept as the server set it up, whatever archives' code does to it.

Handlers set logging up for themselves, as each had a process of its own: `logging.config` takes the
root logger's handlers away and switches off all loggers there are. Most do so while they load, some
with their first call.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

#: Beginnings of the names of the server's own loggers, and of those of archives' modules.
_OWN = ("kserve_torch", "ts.")

#: The root logger's level and handlers; None if it is not the server's to keep.
_kept: tuple[int, list[logging.Handler]] | None = None


def keep() -> None:
    """Take what is set up now for the server's own."""
    global _kept
    root = logging.getLogger()
    _kept = root.level, list(root.handlers)


def release() -> None:
    """Keep nothing any more."""
    global _kept
    _kept = None


def restore() -> None:
    """Have the server's log back; handlers that others have added to the root logger stay."""
    if _kept is None or not _touched(*_kept):
        return
    root = logging.getLogger()
    level, handlers = _kept
    if root.level != level:
        root.setLevel(level)
    # Ours first: the text of a traceback is made by the first one and kept for the others.
    root.handlers[:] = handlers + [other for other in root.handlers if other not in handlers]
    if root.manager.disable:
        logging.disable(logging.NOTSET)
    for name, other in root.manager.loggerDict.copy().items():
        if name.startswith(_OWN) and isinstance(other, logging.Logger):
            other.disabled = False


def _touched(level: int, handlers: list[logging.Handler]) -> bool:
    """Whether anything is lost; every call of a handler asks."""
    root = logging.getLogger()
    return bool(
        # What switches off loggers does so with all of them.
        log.disabled
        or root.manager.disable
        or root.level != level
        or root.handlers[: len(handlers)] != handlers
    )
