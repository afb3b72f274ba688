"""``ts.torch_handler.distributed.base_deepspeed_handler``."""

from __future__ import annotations

from kserve_torch.ts.unavailable import AbsentHandler


class BaseDeepSpeedHandler(AbsentHandler):
    """Base of handlers whose model DeepSpeed spreads over devices."""

    needs = ("deepspeed",)
