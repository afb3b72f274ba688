"""``ts.torch_handler.dali_handler``."""

from __future__ import annotations

from kserve_torch.ts.unavailable import AbsentHandler


class DALIHandler(AbsentHandler):
    """TorchServe's base of handlers with NVIDIA DALI for their preprocessing."""

    needs = ("nvidia", "nvidia.dali")
    why = "DALI pipelines; take BaseHandler instead"
