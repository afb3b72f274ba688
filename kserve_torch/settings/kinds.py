"""How the text of a setting becomes a value, and the text that says what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


class Malformed(ValueError):
    """Says which part of a long value is wrong, where showing all of it would not help."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One kind of value.

    Attributes:
        read: text, already stripped, to value; raises ValueError.
        allowed: completes "... is not".
        metavar: stands for the value in ``--help``.
    """

    read: Callable[[str], T]
    allowed: str
    metavar: str


def integer(low: int, high: int | None = None) -> Kind[int]:
    """Whole numbers from ``low`` to ``high``, both included."""

    def read(text: str) -> int:
        value = int(text)
        if value < low or (high is not None and value > high):
            raise ValueError
        return value

    bounds = f">= {low}" if high is None else f"from {low} to {high}"
    return Kind(read, f"an integer {bounds}", "N")


def choice(*words: str) -> Kind[str]:
    """One of ``words``, in any case."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return Kind(read, "one of " + ", ".join(words), "{" + ",".join(words) + "}")


_BOOLEANS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)


def _read_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError
    return _BOOLEANS[text.lower()]


def _read_seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def _read_time_limit(text: str) -> float:
    value = _read_seconds(text)
    if not value:
        raise ValueError
    return value


def _read_regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise Malformed(str(error)) from error


def _read_regexes(text: str) -> tuple[re.Pattern[str], ...]:
    return tuple(_read_regex(part.strip()) for part in text.split(","))


def _read_workers(text: str) -> int:
    if int(text) != 1:
        raise Malformed(
            "only 1 process is supported: add replicas, or raise the model's maxWorkers"
        )
    return 1


#: Names of service envelopes, older ones too (CONTRACT V1-V4).
_ENVELOPES = {
    "body": "body",
    "json": "json",
    "kserve": "kserve",
    "kfserving": "kserve",
    "kservev2": "kservev2",
    "kfservingv2": "kservev2",
}

BOOLEAN = Kind(_read_boolean, "true or false", "true|false")
SECONDS = Kind(_read_seconds, "a number of seconds >= 0", "SECONDS")
TIME_LIMIT = Kind(_read_time_limit, "a number of seconds > 0", "SECONDS")
MINUTES = Kind(_read_seconds, "a number of minutes >= 0", "MINUTES")
TEXT = Kind(str, "a string", "TEXT")
PATH = Kind(Path, "a path", "PATH")
PORT = integer(1, 65535)
REGEXES = Kind(_read_regexes, "comma-separated regular expressions", "REGEX,...")
#: More processes would have to share one queue and one port each (CONTRACT T-52).
WORKERS = Kind(_read_workers, "1", "1")
#: KServe fills the variable from a label that may be missing, so an unknown name is no envelope
#: and never an error (CONTRACT Q2).
ENVELOPE: Kind[str | None] = Kind(
    lambda text: _ENVELOPES.get(text.lower()), "an envelope name", "|".join(_ENVELOPES)
)
