"""From command line, environment and file to `Settings`: precedence is in one function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kserve_torch.settings.complete import complete
from kserve_torch.settings.consistency import check
from kserve_torch.settings.folders import config_file
from kserve_torch.settings.keys import COMMAND_LINE, DEFAULT, IGNORED, OF_SNAPSHOTS, Key
from kserve_torch.settings.options import ACTIONS, read_command_line
from kserve_torch.settings.properties import read_properties
from kserve_torch.settings.spelling import near, with_guess
from kserve_torch.settings.table import KEYS, Settings

_SERVICE = re.compile(r"(tcp|udp|sctp)://[^/]+:[0-9]+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What each source says, as text."""

    options: Mapping[str, str]
    environ: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    def find(self, key: Key) -> tuple[str, str] | None:
        """Text and source of ``key``: command line, then environment, then file; None if unset.

        The empty text says nothing: KServe fills variables from labels that may be missing. Nor
        does ``TS_GRPC_PORT=tcp://10.0.0.1:80``, by which Kubernetes tells of a Service ``ts-grpc``.
        """
        if key.name in self.options:
            return self.options[key.name], f"{COMMAND_LINE} {key.flags[0]}"
        for variable in key.env:
            value = self.environ.get(variable, "")
            if value.strip() and self._heeded(variable) and not _SERVICE.match(value):
                return value, f"environment {variable}"
        for name in key.properties:
            if self.properties.get(name):
                return self.properties[name], str(self.file)
        return None

    def _heeded(self, variable: str) -> bool:
        if variable != "TS_ALLOWED_URLS":
            return True
        allowing = KEYS["use_env_allowed_urls"]
        found = self.find(allowing)
        return found is not None and bool(allowing.parse(*found))

    def path(self, name: str) -> Path | None:
        """The path that ``name`` is set to."""
        found = self.find(KEYS[name])
        return Path(found[0]) if found else None


def load_settings(
    argv: Sequence[str], environ: Mapping[str, str], program: str = "kserve_torch"
) -> Settings:
    """Settings of a server started as ``program`` with these arguments.

    Reads one file, the ``config.properties``, and looks which of the folders it names exist.

    Raises:
        SettingError: a value is not allowed, a path is missing, ports collide.
    """
    line = read_command_line(argv, program)
    given = _Given(options=line.values, environ=environ)
    if file := given.path("ts_config") or config_file(given.path("model_dir")):
        given = replace(given, file=file, properties=read_properties(file, environ))
    values, sources = _effective(given)
    known = [name for key in KEYS.values() for name in key.properties]
    strange = [name for name in given.properties if name not in (*known, *OF_SNAPSHOTS)]
    unknown = [name for name in strange if name not in IGNORED]
    settings = Settings(
        **values,
        program=line.program,
        sources=sources,
        ignored=(*line.ignored, *(name for name in strange if name in IGNORED)),
        unknown=(
            *(with_guess(word, _flags()) for word in line.unknown),
            *(with_guess(name, known) for name in unknown),
            *_misspelt_variables(environ),
            *_misspelt_limits(values),
        ),
    )
    return check(complete(settings))


def _flags() -> list[str]:
    actions = [flag for flags, _ in ACTIONS.values() for flag in flags]
    return [*(flag for key in KEYS.values() for flag in key.flags), *actions]


def _misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like one of ours; other programs have some with TS_, too."""
    known = [variable for key in KEYS.values() for variable in key.env]
    others = {f"TS_{name.upper()}" for name in IGNORED}
    strange = sorted(name for name in environ if name.startswith("TS_") and name not in others)
    return [with_guess(name, known) for name in strange if near(name, known)]


def _misspelt_limits(values: Mapping[str, Any]) -> list[str]:
    entries = [(name, entry) for name in ("models", "model_snapshot") for entry in values[name]]
    return [f"{name}: {text}" for name, entry in entries for text in entry.misspelt]


def _effective(given: _Given) -> tuple[dict[str, Any], dict[str, str]]:
    values, sources = {}, {}
    for name, key in KEYS.items():
        found = given.find(key)
        values[name] = key.parse(*found) if found else key.default
        sources[name] = found[1] if found else DEFAULT
    if given.file and values["ts_config"] is None:
        values["ts_config"], sources["ts_config"] = given.file, f"{DEFAULT}: it is there"
    return values, sources
