"""``ts.handler_utils.distributed.pt_pippy``."""

from __future__ import annotations

from typing import Any

from kserve_torch.ts.unavailable import require, unsupported


def initialize_rpc_workers(local_rank: int, world_size: int, ctx: Any) -> None:
    """Start the processes of a pipeline.

    Raises:
        LoadFailed: always: PiPPy is not installed, or would need several processes.
    """
    require("initialize_rpc_workers", "pippy")
    raise unsupported("initialize_rpc_workers", "models over several processes")


def get_pipeline_driver(model: Any, world_size: int, ctx: Any) -> Any:
    """Cut ``model`` into a pipeline.

    Raises:
        LoadFailed: always: PiPPy is not installed, or would need several processes.
    """
    require("get_pipeline_driver", "pippy")
    raise unsupported("get_pipeline_driver", "models over several processes")
