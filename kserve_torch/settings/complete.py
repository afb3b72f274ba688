"""Defaults that depend on other settings, and what the log says of settings together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kserve_torch.errors import SettingError
from kserve_torch.settings.addresses import ANYWHERE, LOCAL, Address, correct_host
from kserve_torch.settings.folders import (
    LAYOUT_CONFIG,
    LAYOUT_STORE,
    has_kserve_layout,
    is_kserves,
    naming,
)
from kserve_torch.settings.keys import COMMAND_LINE, DEFAULT
from kserve_torch.settings.kinds import ENVELOPE
from kserve_torch.settings.table import Settings

_ALL_HOSTS = (ANYWHERE, "::")


def complete(settings: Settings) -> Settings:
    """Fills in the defaults that depend on other settings, one rule after the other.

    Raises:
        SettingError: an address would close the port of KServe's probes.
    """
    addresses = (_addresses, _http_port, _hosts, _management_api, _grpc_port)
    for rule in (_config_file, _model_store, _load_models, *addresses, _tokens, _envelope, _stop):
        settings = rule(settings)
    return settings


def _change(settings: Settings, name: str, value: Any, why: str, notice: str = "") -> Settings:
    """``settings`` with another value for ``name``, its source and a line for the log."""
    changed = replace(settings, **{name: value}, sources={**settings.sources, name: why})
    return _tell(changed, notice) if notice else changed


def _tell(settings: Settings, notice: str) -> Settings:
    """``settings`` with a line for the log."""
    return replace(settings, notices=(*settings.notices, notice))


def _config_file(settings: Settings) -> Settings:
    folder = settings.model_dir
    if folder is None or settings.ts_config is not None:
        return settings
    file = folder / LAYOUT_CONFIG.name
    with naming("model_dir", folder):
        if not file.is_file():
            return settings
    return _tell(settings, f"ts_config: {file} is only read if --ts-config names it")


def _model_store(settings: Settings) -> Settings:
    """In KServe's layout the store has its place, whatever the file says (INTERFACE, Start 1)."""
    folder = settings.model_dir
    if folder is None:
        return settings if settings.model_store else _store_of_images(settings)
    if settings.sources["model_store"].startswith(COMMAND_LINE):
        return settings
    with naming("model_dir", folder):
        if not has_kserve_layout(folder):
            return settings
    store, given = folder / LAYOUT_STORE, settings.model_store
    source = settings.sources["model_store"]
    notice = ""
    if source.startswith("environment") and given != store:
        notice = f"model_store: {store} from the layout of model_dir; {given} is ignored ({source})"
    return _change(settings, "model_store", store, "layout of model_dir", notice)


def _store_of_images(settings: Settings) -> Settings:
    """TorchServe's images have ``config.properties`` and the store that it names in one folder.

    Images built on them append lines to that file, which is not here, and name no store.
    """
    folder = settings.ts_config.parent if settings.ts_config else Path()
    store = folder / LAYOUT_STORE
    with naming("model_store", store):
        if not store.is_dir():
            return settings
    where = "beside ts_config" if settings.ts_config else "in the working directory"
    return _change(settings, "model_store", store, f"{DEFAULT}: {where}")


def _load_models(settings: Settings) -> Settings:
    models = tuple(settings.startup_models() or ())
    if not models or models == settings.load_models:
        return settings
    why = "model_snapshot" if settings.model_snapshot else "models"
    return _change(settings, "load_models", models, f"{DEFAULT}: {why}")


def _addresses(settings: Settings) -> Settings:
    for name in ("inference_address", "management_address", "metrics_address"):
        written: Address = getattr(settings, name)
        meant = replace(written, host=correct_host(written.host))
        settings = _meant(settings, name, written, meant)
    for name in ("grpc_inference_address", "grpc_management_address"):
        host: str = getattr(settings, name)
        settings = _meant(settings, name, host, correct_host(host))
    if settings.program == "torchserve" or settings.given("management_address"):
        return settings
    why = f"{DEFAULT}: inference_address"
    return _change(settings, "management_address", settings.inference_address, why)


def _meant(settings: Settings, name: str, written: Any, meant: Any) -> Settings:
    if meant == written:
        return settings
    notice = f"{name}: {written} is a network address; listening on {meant}"
    return _change(settings, name, meant, settings.sources[name], notice)


def _http_port(settings: Settings) -> Settings:
    if settings.ssl_certfile is None or settings.given("http_port"):
        return settings
    return _change(settings, "http_port", 8443, f"{DEFAULT}: ssl_certfile is set")


def _hosts(settings: Settings) -> Settings:
    """Ports that nobody asked for listen on no more hosts than the addresses that were given.

    In KServe's layout they listen on all hosts: its probes and clients come from outside of the
    pod. The file's addresses were for a TorchServe behind a wrapper, which had these ports.
    """
    if _is_kserves(settings):
        return _open_all_the_same(settings)
    host = settings.inference_address.host or LOCAL  # as local as a socket file
    if not settings.given("http_port"):
        settings = replace(settings, http_host=host)
    if not settings.given("grpc_inference_address"):
        why = f"{DEFAULT}: host of inference_address"
        settings = _change(settings, "grpc_inference_address", host, why)
    if settings.given("grpc_port"):
        return settings
    return replace(settings, grpc_host=settings.grpc_inference_address)


def _is_kserves(settings: Settings) -> bool:
    """Whether the addresses are those of a file in KServe's layout."""
    source, file = settings.sources["inference_address"], settings.ts_config
    if file is None or (settings.given("inference_address") and source != str(file)):
        return False
    return is_kserves(file, settings.model_store)


def _open_all_the_same(settings: Settings) -> Settings:
    _check_http_port_is_open(settings)
    address = settings.inference_address
    shared = address.port == settings.http_port
    if address.host in _ALL_HOSTS or (settings.given("http_port") and not shared):
        return settings
    notice = (
        f"http_port: reachable from other machines, as KServe requires, although "
        f"inference_address is {address}; --inference_address {address} prevents it"
    )
    if shared:
        everywhere = replace(address, host=ANYWHERE)
        return _change(settings, "inference_address", everywhere, "KServe's layout", notice)
    return _tell(settings, notice)


def _check_http_port_is_open(settings: Settings) -> None:
    """Refuse addresses that close http_port: they may be for one host alone, so none is opened."""
    for name in ("management_address", "metrics_address"):
        address: Address = getattr(settings, name)
        if not settings.given(name) or address.host in _ALL_HOSTS:
            continue
        if address.port == settings.http_port:
            raise SettingError(
                f"{name}: {address} closes http_port, which KServe connects to from outside of "
                f"the pod; give it another port ({settings.sources[name]})"
            )


def _management_api(settings: Settings) -> Settings:
    """Tell of an address that takes the place of its default one: it may let in more hosts."""
    at = _management(settings)
    if at.host == settings.management_address.host:
        return settings
    notice = f"management_address: the management API is at {at}, with which it shares the port"
    return _tell(settings, notice)


def _management(settings: Settings) -> Address:
    """Where the management API answers, which may share another setting's socket."""
    return next(each.address for each in settings.bindings() if "management" in each.roles)


def _tokens(settings: Settings) -> Settings:
    """Warn if anybody may register models, whose code is then run; TorchServe requires a token."""
    if not settings.enable_model_api or settings.given("disable_token_authorization"):
        return settings
    at = _management(settings)
    if at.host not in _ALL_HOSTS:
        return settings
    notice = (
        f"enable_model_api: whoever reaches {at} can register models, and so run code, without a "
        "token; disable_token_authorization=false requires one, true ends this warning"
    )
    return _tell(settings, notice)


def _grpc_port(settings: Settings) -> Settings:
    """KServe's gRPC port stays closed if another setting has it (INTERFACE, Ports)."""
    if not settings.enable_grpc:
        return _change(settings, "grpc_port", None, "enable_grpc")
    taken = {binding.address.endpoint: binding.address for binding in settings.bindings()}
    if settings.given("grpc_port") or settings.grpc_port not in taken:
        return settings
    why = f"{DEFAULT}: {taken[settings.grpc_port]} has port {settings.grpc_port}"
    notice = (
        f"grpc_port: {taken[settings.grpc_port]} uses it, so KServe's gRPC port is not opened; "
        f"port {settings.grpc_inference_port} offers the same service"
    )
    return _change(settings, "grpc_port", None, why, notice)


def _envelope(settings: Settings) -> Settings:
    if settings.service_envelope is not None or not settings.given("service_envelope"):
        return settings
    source = settings.sources["service_envelope"]
    known = ENVELOPE.metavar.replace("|", ", ")
    notice = f"service_envelope: unknown envelope, none is used ({source}); known are {known}"
    return _change(settings, "service_envelope", None, source, notice)


def _stop(settings: Settings) -> Settings:
    drain, grace = settings.drain_seconds, settings.grace_period
    if drain < grace:
        return settings
    notice = (
        f"grace_period: {grace:g} s leaves no time after drain_seconds, {drain:g} s: requests "
        "in flight at shutdown are dropped"
    )
    return _tell(settings, notice)
