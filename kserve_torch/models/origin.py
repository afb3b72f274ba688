"""What a model version is made from, and made again from when it is loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kserve_torch.messages import NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an archive is, and the overrides of its registration.

    Attributes:
        source: a file of the model store, a URL, or a path from the configuration; None if unknown.
        handler: the handler to use instead of the archive's own.
        overrides: fields of `Limits` that take precedence over the archive's.
    """

    source: str | Path | None = None
    handler: str | None = None
    overrides: Mapping[str, Any] = NOTHING
