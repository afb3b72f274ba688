"""What must hold of settings together: folders exist, ports and pairs of files fit."""

from __future__ import annotations

from pathlib import Path

from kserve_torch.errors import SettingError
from kserve_torch.settings.folders import naming
from kserve_torch.settings.table import Settings


def check(settings: Settings) -> Settings:
    """``settings``, if they are consistent.

    Raises:
        SettingError: a folder is missing, ports collide, one file of a pair is missing.
    """
    _check_folders(settings)
    taken = {binding.address.endpoint: binding for binding in settings.bindings()}
    for binding in settings.grpc_bindings():
        if other := taken.get(binding.address.endpoint):
            raise SettingError(
                f"{binding.settings[0]}: {binding.address} and {other.settings[0]} "
                f"{other.address} use the same port"
            )
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        raise SettingError("ssl_certfile and ssl_keyfile: set both or neither")
    if (settings.certificate_file is None) != (settings.private_key_file is None):
        raise SettingError("certificate_file and private_key_file: set both or neither")
    return settings


def _check_folders(settings: Settings) -> None:
    if settings.model_dir is None and settings.model_store is None:
        unknown = f"; unknown: {', '.join(settings.unknown)}" if settings.unknown else ""
        raise SettingError(f"Missing mandatory parameter --model-store (or --model_dir){unknown}")
    for name in ("model_dir", "model_store"):
        folder: Path | None = getattr(settings, name)
        if folder is None:
            continue
        with naming(name, folder):
            there, is_folder = folder.exists(), folder.is_dir()
        if not there or (name == "model_store" and not is_folder):
            fault = "not a folder" if there else "no such folder"
            raise SettingError(f"{name}: {folder}: {fault} ({settings.sources[name]})")
