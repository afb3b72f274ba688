"""``ts.torch_handler.distributed.base_deepspeed_handler``."""

from __future__ import annotations

from kserve_torch.handler.base import BaseHandler
from kserve_torch.runtime.context import Context
from kserve_torch.ts.absent import require, unsupported


class BaseDeepSpeedHandler(BaseHandler):
    """Base of handlers whose model DeepSpeed spreads over devices."""

    def initialize(self, context: Context) -> None:
        """Say what is missing.

        Raises:
            LoadFailed: always: DeepSpeed is not installed, or would need several processes.
        """
        require(type(self).__name__, "deepspeed")
        raise unsupported(type(self).__name__, "models over several processes")
