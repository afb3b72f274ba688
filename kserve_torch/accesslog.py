"""The access log: one line per request, as text or as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from kserve_torch.events import Event, Responded
from kserve_torch.logs import ACCESS, cut, moment_of, one_line
from kserve_torch.settings import Settings

access = logging.getLogger(ACCESS)

#: Lines are written together, at the latest after so many seconds, or once there are so many:
#: writing them blocks the event loop.
FLUSH_SECONDS = 0.1
FLUSH_LINES = 64


class AccessLog:
    """Observer that logs a line for every answer, if ``access_log`` is on.

    A line through `logging` would take longer than everything else that the server does for a small
    request. So lines are written directly, several together, in the form that `logging` would give
    them. Only if users configure logging themselves, each line goes through it.

    Args:
        settings: ``access_log``, ``log_json`` and whether users configure logging.
    """

    def __init__(self, settings: Settings) -> None:
        self._on = settings.access_log
        self._direct = settings.configure_logging and settings.log_config_file is None
        self._form = _json_line if settings.log_json else _text_line
        self._stream = sys.stderr  # a handler may put another one in its place
        self._kept: list[tuple[float, Responded]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, event: Event) -> None:
        """Log a `Responded`; other events are ignored. On the event loop."""
        if not (self._on and isinstance(event, Responded) and access.isEnabledFor(logging.INFO)):
            return
        if not self._direct:
            words = _words(_fields(event, one_line))
            access.info("%s", words, extra={"fields": _fields(event, cut)})
            return
        self._kept.append((time.time(), event))
        if len(self._kept) >= FLUSH_LINES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write the pending lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        lines = [self._form(moment_of(when), event) for when, event in kept]
        with suppress(OSError):  # as `logging` does: a full disk must not fail requests
            self._stream.write("".join(lines))
            self._stream.flush()


def _words(fields: Mapping[str, Any]) -> str:
    return _template(tuple(fields)) % tuple(fields.values())


@lru_cache
def _template(names: tuple[str, ...]) -> str:
    return " ".join(f"{name}=%s" for name in names)


def _text_line(moment: str, event: Responded) -> str:
    return f"{moment} INFO {access.name}: {_words(_fields(event, one_line))}\n"


def _json_line(moment: str, event: Responded) -> str:
    head = {"time": moment, "level": "INFO", "logger": access.name}
    return json.dumps(head | _fields(event, cut)) + "\n"


def _fields(event: Responded, shown: Callable[[str], str]) -> dict[str, Any]:
    """The fields of an access line, in order; times are in milliseconds.

    Of an error only the class is named: its text may quote the payload (DESIGN law 6).

    Args:
        event: the answer.
        shown: makes text from clients fit for the line.
    """
    fields = {
        "protocol": event.protocol,
        "model": shown(event.model) or "-",
        "version": shown(event.version) or "-",
        "status": event.status,
        "ms": _milliseconds(event.seconds),
        "rows": event.rows,
        "batch": event.timing.batch_rows,
        "queue_ms": _milliseconds(event.timing.queued),
        "handler_ms": _milliseconds(event.timing.handler),
        "id": shown(event.request_id) or "-",
    }
    return fields | {"error": event.error} if event.error else fields


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
