"""From command line, environment and file to `Settings`: the precedence, in one function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kserve_torch.errors import SettingError
from kserve_torch.settings.addresses import Address, correct_host
from kserve_torch.settings.keys import DEFAULT, IGNORED, Key
from kserve_torch.settings.options import read_command_line
from kserve_torch.settings.properties import read_properties
from kserve_torch.settings.table import KEYS, Settings

_LAYOUT_CONFIG = Path("config", "config.properties")
_LAYOUT_STORE = "model-store"
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What each place says, as text."""

    options: Mapping[str, str]
    environ: Mapping[str, str]
    properties: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None

    def find(self, key: Key) -> tuple[str, str] | None:
        """Text and source of ``key``: command line, then environment, then file; None if nowhere.

        The empty text says nothing: KServe fills variables from labels that may be missing.
        """
        if key.name in self.options:
            return self.options[key.name], f"{COMMAND_LINE} {key.flags[0]}"
        for variable in key.env:
            if self.environ.get(variable, "").strip() and self._heeded(variable):
                return self.environ[variable], f"environment {variable}"
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
    if file := _config_file(given):
        given = replace(given, file=file, properties=read_properties(file, environ))
    values, sources = _effective(given)
    known = {name for key in KEYS.values() for name in key.properties}
    strange = [name for name in given.properties if name not in known]
    settings = Settings(
        **values,
        program=line.program,
        sources=sources,
        ignored=(*line.ignored, *(name for name in strange if name in IGNORED)),
        unknown=(*line.unknown, *(name for name in strange if name not in IGNORED)),
    )
    return _check(_complete(settings))


def _config_file(given: _Given) -> Path | None:
    if named := given.path("ts_config"):
        return named
    model_dir = given.path("model_dir")
    usual = [model_dir / _LAYOUT_CONFIG] if model_dir else []
    return next((path for path in (*usual, Path("config.properties")) if path.is_file()), None)


def _effective(given: _Given) -> tuple[dict[str, Any], dict[str, str]]:
    values, sources = {}, {}
    for name, key in KEYS.items():
        found = given.find(key)
        values[name] = key.parse(*found) if found else key.default
        sources[name] = found[1] if found else DEFAULT
    if given.file and values["ts_config"] is None:
        values["ts_config"], sources["ts_config"] = given.file, f"{DEFAULT}: it is there"
    return values, sources


# --- defaults that depend on other settings -------------------------------------------------------


def _complete(settings: Settings) -> Settings:
    """Fills what only the whole can tell, one rule after the other."""
    for rule in (_model_store, _addresses, _http_port, _grpc_port, _envelope):
        settings = rule(settings)
    return settings


def _change(settings: Settings, name: str, value: Any, why: str, notice: str = "") -> Settings:
    """``settings`` with another value for ``name``, its source and a line for the log."""
    return replace(
        settings,
        **{name: value},
        sources={**settings.sources, name: why},
        notices=(*settings.notices, notice) if notice else settings.notices,
    )


def _model_store(settings: Settings) -> Settings:
    """KServe's layout says where the store is, whatever the file says (INTERFACE, Start 1)."""
    folder = settings.model_dir
    by_hand = settings.sources["model_store"].startswith(COMMAND_LINE)
    if folder is None or by_hand:
        return settings
    if not (folder / _LAYOUT_CONFIG).is_file() and not (folder / _LAYOUT_STORE).is_dir():
        return settings
    return _change(settings, "model_store", folder / _LAYOUT_STORE, "layout of model_dir")


def _addresses(settings: Settings) -> Settings:
    for name in ("inference_address", "management_address", "metrics_address"):
        written: Address = getattr(settings, name)
        if (meant := correct_host(written)) != written:
            notice = f"{name}: {written} is the address of a network; listening at {meant}"
            settings = _change(settings, name, meant, settings.sources[name], notice)
    if settings.program == "torchserve" or settings.given("management_address"):
        return settings
    why = f"{DEFAULT}: inference_address"
    return _change(settings, "management_address", settings.inference_address, why)


def _http_port(settings: Settings) -> Settings:
    if settings.ssl_certfile is None or settings.given("http_port"):
        return settings
    return _change(settings, "http_port", 8443, f"{DEFAULT}: ssl_certfile is set")


def _grpc_port(settings: Settings) -> Settings:
    """KServe's gRPC port gives way if it was not asked for by hand (INTERFACE, Ports)."""
    if not settings.enable_grpc:
        return _change(settings, "grpc_port", None, "enable_grpc")
    taken = {binding.address.endpoint: binding.address for binding in settings.bindings()}
    if settings.given("grpc_port") or settings.grpc_port not in taken:
        return settings
    why = f"{DEFAULT}: {taken[settings.grpc_port]} has port {settings.grpc_port}"
    notice = (
        f"grpc_port: {taken[settings.grpc_port]} has it, so KServe's gRPC port is not opened; "
        f"port {settings.grpc_inference_port} has the same service"
    )
    return _change(settings, "grpc_port", None, why, notice)


def _envelope(settings: Settings) -> Settings:
    if settings.service_envelope is not None or not settings.given("service_envelope"):
        return settings
    source = settings.sources["service_envelope"]
    notice = f"service_envelope: unknown name, so none is used ({source})"
    return _change(settings, "service_envelope", None, source, notice)


# --- what must hold -------------------------------------------------------------------------------


def _check(settings: Settings) -> Settings:
    _check_folders(settings)
    taken = {binding.address.endpoint: binding.address for binding in settings.bindings()}
    for binding in settings.grpc_bindings():
        address = binding.address
        if address.endpoint in taken:
            raise SettingError(f"{address} and {taken[address.endpoint]} name one port")
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        raise SettingError("ssl_certfile and ssl_keyfile: one needs the other")
    if (settings.certificate_file is None) != (settings.private_key_file is None):
        raise SettingError("certificate_file and private_key_file: one needs the other")
    return settings


def _check_folders(settings: Settings) -> None:
    if settings.model_dir is None and settings.model_store is None:
        raise SettingError("Missing mandatory parameter --model-store (or --model_dir)")
    for name in ("model_dir", "model_store"):
        folder: Path | None = getattr(settings, name)
        if folder is not None and not folder.exists():
            raise SettingError(f"{name}: {folder}: no such folder ({settings.sources[name]})")
