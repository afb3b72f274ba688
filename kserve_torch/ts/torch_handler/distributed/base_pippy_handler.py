"""``ts.torch_handler.distributed.base_pippy_handler``."""

from __future__ import annotations

from kserve_torch.ts.unavailable import AbsentHandler


class BasePippyHandler(AbsentHandler):
    """Base of handlers whose model PiPPy cuts into a pipeline."""

    needs = ("pippy",)
