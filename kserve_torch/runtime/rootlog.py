"""The process's logging, kept as the server set it up, whatever archives' code does to it.

Handlers set up logging as if they had a process of their own: `logging.config` removes the root
logger's handlers and disables all existing loggers. Most do so while they load, some in their first
call.
"""

from __future__ import annotations

import logging

from kserve_torch.namespace import loggers

log = logging.getLogger(__name__)

#: Prefixes of the names of the server's own loggers, and of those of archives' modules.
_OWN = ("kserve_torch", "ts.")

#: The root logger's level and handlers; None if it is not the server's to keep.
_kept: tuple[int, list[logging.Handler]] | None = None


def keep() -> None:
    """Remember the present set-up as the server's."""
    global _kept
    root = logging.getLogger()
    _kept = root.level, list(root.handlers)
    loggers.own_handlers()


def release() -> None:
    """Forget it; `restore` does nothing from then on."""
    global _kept
    _kept = None
    loggers.share_handlers()


def restore() -> None:
    """Put the server's set-up back; handlers that others added to the root logger stay."""
    if _kept is None or not _touched(*_kept):
        return
    root = logging.getLogger()
    level, handlers = _kept
    if root.level != level:
        root.setLevel(level)
    # Ours first: the first handler formats a traceback, and the others reuse its text.
    root.handlers[:] = handlers + [other for other in root.handlers if other not in handlers]
    if root.manager.disable:
        logging.disable(logging.NOTSET)
    for name, other in root.manager.loggerDict.copy().items():
        if name.startswith(_OWN) and isinstance(other, logging.Logger):
            other.disabled = False


def _touched(level: int, handlers: list[logging.Handler]) -> bool:
    """Whether anything changed; checked after every call of a handler."""
    root = logging.getLogger()
    return bool(
        # Whatever disables loggers disables this one too.
        log.disabled
        or root.manager.disable
        or root.level != level
        or root.handlers[: len(handlers)] != handlers
    )
