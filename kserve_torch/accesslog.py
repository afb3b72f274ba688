"""The access log: one line per request, as text or as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kserve_torch.events import Responded
from kserve_torch.logs import ACCESS, cut, moment_of, one_line
from kserve_torch.settings import Settings

access = logging.getLogger(ACCESS)

#: Lines are written together, at the latest after so many seconds: writing blocks the event loop.
FLUSH_SECONDS = 0.1
#: Or after so few once there are so many lines: not at once, when further answers or the requests
#: of the next batch may wait for the event loop.
SOON_SECONDS = 0.002
FLUSH_LINES = 64

#: A line's fields; times are in milliseconds. A failure has one more, ``error``: the class, as its
#: text may quote the payload (DESIGN law 6).
_TEMPLATE = (
    "protocol=%s model=%s version=%s status=%s ms=%s rows=%s batch=%s queue_ms=%s handler_ms=%s "
    "id=%s"
)
_NAMES = [field.removesuffix("=%s") for field in _TEMPLATE.split()]


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

    def __call__(self, event: Responded) -> None:
        """Log an answer; on the event loop."""
        if not (self._on and access.isEnabledFor(logging.INFO)):
            return
        if not self._direct:
            access.info("%s", _words(event), extra={"fields": _fields(event)})
            return
        self._kept.append((time.time(), event))
        if self._timer is None:
            self._flush_in(FLUSH_SECONDS)
        elif len(self._kept) == FLUSH_LINES:
            self._timer.cancel()
            self._flush_in(SOON_SECONDS)

    def _flush_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.flush)

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


def _words(event: Responded) -> str:
    words = _TEMPLATE % _values(event, one_line)
    return f"{words} error={event.error}" if event.error else words


def _text_line(moment: str, event: Responded) -> str:
    return f"{moment} INFO {access.name}: {_words(event)}\n"


def _json_line(moment: str, event: Responded) -> str:
    head = {"time": moment, "level": "INFO", "logger": access.name}
    return json.dumps(head | _fields(event)) + "\n"


def _fields(event: Responded) -> dict[str, Any]:
    fields = dict(zip(_NAMES, _values(event, cut), strict=True))
    return fields | {"error": event.error} if event.error else fields


def _values(event: Responded, shown: Callable[[str], str]) -> tuple[Any, ...]:
    """What an access line says of an answer, in the order of `_NAMES`.

    Args:
        event: the answer.
        shown: makes text from clients fit for the line.
    """
    timing = event.timing
    return (
        event.protocol,
        shown(event.model) or "-",
        shown(event.version) or "-",
        event.status,
        _milliseconds(event.seconds),
        event.rows,
        timing.batch_rows,
        _milliseconds(timing.queued),
        _milliseconds(timing.handler),
        shown(event.request_id) or "-",
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
