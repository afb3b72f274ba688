"""``ts.handler_utils.preprocess.dali``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from kserve_torch.ts.unavailable import require


def get_dali_pipeline(dali_file: str | Path) -> Any:
    """The serialized DALI pipeline in ``dali_file``; needs NVIDIA's package.

    Raises:
        LoadFailed: DALI is not installed.
    """
    require("get_dali_pipeline", "nvidia", "nvidia.dali")
    pipeline = importlib.import_module("nvidia.dali.pipeline").Pipeline
    return pipeline.deserialize(Path(dali_file).read_bytes())
