"""A store with all that may be in one."""

import re
from pathlib import Path

from kserve_torch.archives.store import ModelStore
from kserve_torch.settings import Settings

CONTENT = bytes(range(256)) * 64


def workdir(folder: Path) -> Path:
    return folder.with_name("temporary")


def allowing(folder: Path, *patterns: str) -> ModelStore:
    compiled = tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)
    settings = Settings(
        model_store=folder, allowed_urls=compiled, sources={"allowed_urls": "command line"}
    )
    return ModelStore(settings, workdir(folder))
