"""Reading ``config.properties`` (CONTRACT §3.15)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import javaproperties

from kserve_torch.errors import SettingError

_VARIABLE = re.compile(r"\$\$([^$]+)\$\$")


def read_properties(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Keys and values of a Java properties file, each ``$$VAR$$`` replaced from ``environ``.

    Raises:
        SettingError: no such file, a broken escape, or a variable that is not set.
    """
    try:
        pairs = javaproperties.loads(path.read_bytes())
    except OSError as error:
        raise SettingError(f"config.properties: {path}: {error.strerror}") from error
    except javaproperties.InvalidUEscapeError as error:
        raise SettingError(f"config.properties: {path}: {error}") from error
    return {key: _substitute(key, value.strip(), environ, path) for key, value in pairs.items()}


def _substitute(key: str, value: str, environ: Mapping[str, str], path: Path) -> str:
    def look_up(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise SettingError(f"{key}: $${match[1]}$$: no such environment variable ({path})")
        return environ[match[1]]

    return _VARIABLE.sub(look_up, value)
