"""What archives add to the process's logging: loggers, and handlers of loggers that all share.

Where each worker is a process, a handler of the root logger gets what that worker logs. Here it
would get the server's lines and those of other archives too; and one that each worker adds to a
logger by name would write each line once for every worker.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from types import FrameType

from kserve_torch.namespace.scopes import current_scope, scopes

_add_handler = logging.Logger.addHandler
#: What the code of an archive has added, by the name of its package.
_added: dict[str, list[tuple[logging.Logger, logging.Handler]]] = {}


class _From(logging.Filter):
    """Lets through what one archive's code logs, and what libraries log when it calls them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if _package(record.name) == self.name:
            return True
        scope = current_scope()
        return scope is not None and scope.name == self.name


def own_handlers() -> None:
    """Let handlers that an archive's code adds get this archive's records only.

    Those that libraries add stay as they are: many let nothing through to the root logger, so other
    archives' records would be lost.
    """
    logging.Logger.addHandler = _add  # type: ignore[method-assign,assignment]


def share_handlers() -> None:
    """Undo `own_handlers`, for handlers that are added from now on."""
    logging.Logger.addHandler = _add_handler  # type: ignore[method-assign]


def _add(logger: logging.Logger, hdlr: logging.Handler) -> None:
    package = _adding_package(sys._getframe(1))
    if package in scopes and hdlr not in logger.handlers:
        added = _added.setdefault(package, [])
        if all(hdlr is not other for _, other in added):
            hdlr.addFilter(_From(package))
        added.append((logger, hdlr))
    _add_handler(logger, hdlr)


def _adding_package(frame: FrameType | None) -> str:
    """The package of the code that adds a handler, by itself or with `logging.config`."""
    package = "logging"
    while frame is not None and package == "logging":
        package = _package(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return package


def _package(name: str) -> str:
    return name.partition(".")[0]


def forget(package: str) -> None:
    """Forget the loggers of an archive's modules, and close the handlers that it has added.

    `logging` itself never forgets a name.
    """
    for logger, handler in _added.pop(package, ()):
        logger.removeHandler(handler)
        with suppress(Exception):  # it is an archive's own, and nobody waits for it
            handler.close()
    loggers = logging.root.manager.loggerDict
    with logging._lock:  # type: ignore[attr-defined]  # others iterate under it
        for name in [*loggers]:
            if _package(name) == package:
                del loggers[name]
