"""``ts.torch_handler.distributed.base_pippy_handler``."""

from __future__ import annotations

from kserve_torch.handler.base import BaseHandler
from kserve_torch.runtime.context import Context
from kserve_torch.ts.absent import require, unsupported


class BasePippyHandler(BaseHandler):
    """Base of handlers whose model PiPPy cuts into a pipeline."""

    def initialize(self, context: Context) -> None:
        """Say what is missing.

        Raises:
            LoadFailed: always: PiPPy is not installed, or would need several processes.
        """
        require(type(self).__name__, "pippy")
        raise unsupported(type(self).__name__, "models over several processes")
