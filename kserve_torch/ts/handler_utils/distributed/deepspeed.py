"""``ts.handler_utils.distributed.deepspeed``."""

from __future__ import annotations

from typing import Any

from kserve_torch.ts.unavailable import require, unsupported


def get_ds_engine(model: Any, ctx: Any) -> Any:
    """A DeepSpeed engine for ``model``.

    Raises:
        LoadFailed: always: DeepSpeed is not installed, or would need several processes.
    """
    require("get_ds_engine", "deepspeed")
    raise unsupported("get_ds_engine", "models over several processes")
