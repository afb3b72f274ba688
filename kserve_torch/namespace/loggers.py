"""What archives add to the process's logging: loggers, handlers, filters, a factory of records.

Where each worker is a process, a handler of the root logger gets what that worker logs. Here it
would get the server's lines and those of other archives too; and one that each worker adds to a
logger by name would write each line once for every worker. Filters and factories often need what
only the archive's own threads have, and raise on others.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from traceback import walk_stack
from types import FrameType
from typing import Any

from kserve_torch.namespace.scopes import current_scope, scopes

Factory = Callable[..., logging.LogRecord]

_add_handler = logging.Logger.addHandler
_add_filter = logging.Filterer.addFilter
_get_factory, _set_factory = logging.getLogRecordFactory, logging.setLogRecordFactory
#: The handlers of the server, while archives' additions are their own.
_servers: list[logging.Handler] = []
#: What the code of an archive has added, by the name of its package.
_added: dict[str, list[tuple[logging.Logger, logging.Handler]]] = {}
_factories: dict[str, Factory] = {}
#: Makes the records of all others.
_servers_factory: Factory = logging.LogRecord


class _From(logging.Filter):
    """Lets through what one archive's code logs, and what libraries log when it calls them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _archive_of(record.name) == self.name


class _Only(_From):
    """One archive's filter, which the records of others do not pass through."""

    def __init__(self, package: str, only: Any) -> None:
        super().__init__(package)
        self._filterer = logging.Filterer()
        _add_filter(self._filterer, only)

    def filter(self, record: logging.LogRecord) -> bool:
        return not super().filter(record) or bool(self._filterer.filter(record))


def separate(servers: Iterable[logging.Handler]) -> None:
    """Let what an archive's code adds from now on have effect on this archive's records only.

    Handlers that libraries add stay as they are: many let nothing through to the root logger, so
    other archives' records would be lost.

    Args:
        servers: the handlers of the server, to which archives add filters.
    """
    global _servers_factory
    _servers[:] = servers
    logging.Logger.addHandler = _add  # type: ignore[method-assign,assignment]
    logging.Filterer.addFilter = _filter  # type: ignore[method-assign,assignment]
    logging.getLogRecordFactory, logging.setLogRecordFactory = _factory, _use_factory
    if _get_factory() is not _make:
        _servers_factory = _get_factory()
        _set_factory(_make)


def _add(logger: logging.Logger, hdlr: logging.Handler) -> None:
    package = _adding_package(sys._getframe(1))
    if package in scopes:
        added = _added.setdefault(package, [])
        if all(hdlr is not other for _, other in added):
            hdlr.filters.insert(0, _From(package))
        added.append((logger, hdlr))
    _add_handler(logger, hdlr)


def _filter(filterer: logging.Filterer, filter: Any) -> None:
    package = _adding_package(sys._getframe(1))
    own = package in scopes and filterer in _servers
    _add_filter(filterer, _Only(package, filter) if own else filter)


def _use_factory(factory: Factory) -> None:
    package = _adding_package(sys._getframe(1))
    if package in scopes:
        _factories[package] = factory
    else:
        _set_factory(factory)


def _factory() -> Factory:
    package = _adding_package(sys._getframe(1))
    # Not `_make` for archives: their factory calls what they get here.
    return _factories.get(package, _servers_factory) if package in scopes else _get_factory()


def _make(name: str, *args: Any, **kwargs: Any) -> logging.LogRecord:
    own = _factories.get(_archive_of(name) or "") if _factories else None
    return (own or _servers_factory)(name, *args, **kwargs)


def _archive_of(name: str) -> str | None:
    """The archive that logs something now, to a logger called ``name``."""
    package = _package(name)
    if package == "kserve_torch" or package in scopes:
        return package
    scope = current_scope()
    return None if scope is None else scope.name


def _adding_package(innermost: FrameType) -> str:
    """The package of the code that adds a handler, by itself or with a function of `logging`."""
    packages = (_package(str(f.f_globals.get("__name__"))) for f, _ in walk_stack(innermost))
    return next((package for package in packages if package != "logging"), "logging")


def _package(name: str) -> str:
    return name.partition(".")[0]


def forget(package: str) -> None:
    """Forget the loggers of an archive's modules and what it has added; its handlers are closed.

    `logging` itself never forgets a name.
    """
    for logger, handler in _added.pop(package, ()):
        logger.removeHandler(handler)
        with suppress(Exception):  # it is an archive's own, and nobody waits for it
            handler.close()
    _factories.pop(package, None)
    for handler in _servers:
        for each in [each for each in handler.filters if isinstance(each, _Only)]:
            if each.name == package:
                handler.removeFilter(each)
    loggers = logging.root.manager.loggerDict
    with logging._lock:  # type: ignore[attr-defined]  # others iterate under it
        for name in [*loggers]:
            if _package(name) == package:
                del loggers[name]
