"""Logging: its set-up for the process, and the format of its lines, text or JSON.

Payloads are never logged; text from clients (ids, names) cannot break a line.
"""

from __future__ import annotations

import json
import logging
import logging.config
import re
import sys
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from kserve_torch.errors import SettingError
from kserve_torch.namespace.scopes import PREFIX
from kserve_torch.runtime import rootlog
from kserve_torch.settings import Settings
from kserve_torch.settings.folders import naming

logger = logging.getLogger("kserve_torch")
#: The name of the logger of the access log.
ACCESS = "kserve_torch.access"

#: Loggers that repeat the access log, or say too much.
_QUIET = (
    "uvicorn",
    "uvicorn.access",
    "uvicorn.error",
    "kserve.trace",
    "httpx",
    "httpcore",
    "PIL",
    "matplotlib",
)
_LONGEST = 200
#: Characters of a line of a traceback.
_LONGEST_LINE = 1000
#: The prefix of an archive's module names, and the names of worker threads.
_ARCHIVE = re.compile(rf"^{PREFIX}\d+\.")
_WORKER = re.compile(r" worker \d+$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure(settings: Settings) -> None:
    """Set up logging for the whole process, and log the notices of the settings.

    Raises:
        SettingError: ``log_config_file`` cannot be used.
    """
    if settings.log_config_file is not None or settings.configure_logging:
        _quieten(settings)
        if settings.log_config_file is not None:
            _from_file(settings.log_config_file)
        else:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(JsonFormatter() if settings.log_json else TextFormatter())
            logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
            logging.captureWarnings(True)
        rootlog.keep()
    _announce(settings)


def _quieten(settings: Settings) -> None:
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns of each form that a client has malformed, and the client is told.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    if settings.metrics_mode != "log":
        logging.getLogger("ts.metrics").setLevel(logging.WARNING)


def _from_file(path: Path) -> None:
    with naming("log_config_file", path):
        text = path.read_bytes()
    try:
        config = yaml.safe_load(text)
        # By default all loggers that there are by now, the server's own, would be silent.
        logging.config.dictConfig({"disable_existing_loggers": False, **config})
    except Exception as error:  # of the file, of YAML, and whatever its handlers raise
        # logging.config says which part is at fault; the reason is in the cause.
        why = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
        raise SettingError(f"log_config_file: {path}: {' '.join(why.split())}") from error


def _announce(settings: Settings) -> None:
    if settings.ignored:
        logger.info("settings with no effect here: %s", ", ".join(settings.ignored))
    if settings.unknown:
        logger.warning("unknown settings: %s", ", ".join(settings.unknown))
    for notice in settings.notices:
        logger.warning("%s", notice)


def one_line(text: str, spaces: bool = False) -> str:
    """``text`` shortened, and quoted with escapes if it could break or fake a log line.

    Args:
        text: any text.
        spaces: whether to allow spaces without quotes.
    """
    text = cut(text)
    return text if text.isprintable() and (spaces or " " not in text) else repr(text)


def cut(text: str) -> str:
    """``text`` shortened; for JSON, which needs no further escapes."""
    return text[:_LONGEST]


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _logger(record: logging.LogRecord) -> str:
    """The logger's name; a module of an archive has the name that it has there."""
    return _ARCHIVE.sub("", record.name)


def _worker(record: logging.LogRecord) -> str | None:
    """The worker on whose thread this was logged: model, version, verb and number."""
    thread = record.threadName or ""
    return thread if _WORKER.search(thread) else None


class _Formatter(logging.Formatter):
    def formatException(self, ei: Any) -> str:
        """The traceback, with lines of bounded length: the text of an error may quote a request."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(line[:_LONGEST_LINE] for line in lines)


class TextFormatter(_Formatter):
    """``2026-01-31T12:00:00.000Z INFO kserve_torch.server: text``, then a traceback if any.

    On a worker's thread, the worker is in brackets before the text.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line; in our own messages control characters are escaped: a client may send some.

        A handler's may have several lines, such as the text of a model or a traceback.
        """
        text, name = record.message, _logger(record)
        if name.startswith("kserve_torch"):
            text = _escaped(text)
        worker = _worker(record) or ""
        said = text.startswith(worker.rpartition(" worker ")[0])
        place = "" if said else f"[{one_line(worker, spaces=True)}] "
        return f"{moment_of(record.created)} {record.levelname} {name}: {place}{text}"

    def formatException(self, ei: Any) -> str:
        """The traceback, indented: text from clients in it cannot fake a log line then."""
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {_escaped(line)}" for line in lines)


class JsonFormatter(_Formatter):
    """One JSON object per line: time, level, logger, message, then worker, exception and stack."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line: dict[str, Any] = {
            "time": moment_of(record.created),
            "level": record.levelname,
            "logger": _logger(record),
            "message": record.getMessage(),
        }
        worker = _worker(record)
        if worker is not None:
            line["worker"] = worker
        if record.name.startswith("kserve_torch."):  # others' may have fields of their own
            line |= record.__dict__.get("fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)


def moment_of(seconds: float) -> str:
    """A time in UTC, to the millisecond."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{_second(whole)}.{milliseconds:03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
