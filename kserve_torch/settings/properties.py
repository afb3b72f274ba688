"""Reading ``config.properties`` (CONTRACT §3.15)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import javaproperties

from kserve_torch.errors import SettingError
from kserve_torch.settings.folders import naming

_VARIABLE = re.compile(r"\$\$([^$]+)\$\$")


def read_properties(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Keys and values of a Java properties file, each ``$$VAR$$`` replaced from ``environ``.

    Raises:
        SettingError: no such file, a broken escape, or a variable that is not set.
    """
    with naming("ts_config", path):
        text = path.read_bytes()
    try:
        pairs = javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError as error:
        raise SettingError(f"ts_config: {path}: {error}") from error
    return {key: _substitute(key, value, environ, path) for key, value in pairs.items()}


def _substitute(key: str, value: str, environ: Mapping[str, str], path: Path) -> str:
    def look_up(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise SettingError(f"{key}: $${match[1]}$$: no such environment variable ({path})")
        return environ[match[1]]

    return _VARIABLE.sub(look_up, value)
