"""``ts.torch_handler.dali_handler``."""

from __future__ import annotations

from kserve_torch.handler.base import BaseHandler
from kserve_torch.runtime.context import Context
from kserve_torch.ts.absent import without_dali


class DALIHandler(BaseHandler):
    """TorchServe's base of handlers with NVIDIA DALI for their preprocessing."""

    def initialize(self, context: Context) -> None:
        """Say what is missing.

        Raises:
            LoadFailed: always: DALI is not installed, or its pipelines are not run here.
        """
        raise without_dali("dali_handler", "take BaseHandler")
