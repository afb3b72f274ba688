"""Settings for people: effective values with their sources, and the reference page."""

from __future__ import annotations

import re
from typing import Any

from kserve_torch.redact import redacted
from kserve_torch.settings.keys import DEFAULT, IGNORED, Key
from kserve_torch.settings.limits import written
from kserve_torch.settings.models import Entry, StartupModel
from kserve_torch.settings.table import KEYS, Settings

_HIDDEN = "********"


def default_of(key: Key) -> str:
    """The default in words, as ``--help`` and the reference page have it."""
    return key.shown or _show(key, key.default) or "none"


def _show(key: Key, value: Any) -> str:
    """``value`` as text for people: "" if it is not set, asterisks if it is secret."""
    return _HIDDEN if key.secret else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.15g}"
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if isinstance(value, StartupModel):
        file = redacted(str(value.file))
        return f"{value.name}={file}" if value.name else file
    if isinstance(value, Entry):
        limits = " ".join(f"{word}={_text(v)}" for word, v in written(value.limits).items())
        return f"{_text(value.model)} ({limits})"
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return str(value)


def settings_report(settings: Settings) -> str:
    """What ``--print-settings`` prints: a line per key, ``key=value  # source``."""
    lines = [f"{name}={_show(key, getattr(settings, name))}" for name, key in KEYS.items()]
    width = min(60, max(map(len, lines)))
    rows = [
        f"{line:<{width}}  # {_source(settings, key)}"
        for line, key in zip(lines, KEYS.values(), strict=True)
    ]
    given = [("ignored", settings.ignored), ("unknown", settings.unknown)]
    rows += [f"# {word}: {', '.join(names)}" for word, names in given if names]
    return "\n".join((*rows, *(f"# {notice}" for notice in settings.notices)))


def _source(settings: Settings, key: Key) -> str:
    """Where the value came from; where there is none, also what applies."""
    source = settings.sources.get(key.name, DEFAULT)
    unset = getattr(settings, key.name) is None
    return f"{source}: {key.shown}" if unset and key.shown else source


def reference() -> str:
    """The table of keys as a Markdown page."""
    head = (
        "A key's option is `--KEY` and its variable `TS_KEY`, in upper case, unless its "
        "description ends with others.\n\n"
        "| key | allowed | default | description |\n|---|---|---|---|"
    )
    ignored = ", ".join(f"`{name}`" for name in sorted(IGNORED))
    rows = "\n".join(map(_row, KEYS.values()))
    return f"{head}\n{rows}\n\nAccepted, but without effect: {ignored}.\n"


def _row(key: Key) -> str:
    cells = [f"`{key.name}`", key.kind.allowed, default_of(key), key.help + _names(key)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _names(key: Key) -> str:
    names = (*key.flags, *key.env)
    if names == (f"--{key.name}", f"TS_{key.name.upper()}"):
        return ""
    return f" ({', '.join(f'`{name}`' for name in names) or 'neither option nor variable'})"
