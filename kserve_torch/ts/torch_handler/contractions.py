"""``ts.torch_handler.contractions``."""

from __future__ import annotations

from kserve_torch.handler.contractions import CONTRACTION_MAP

__all__ = ["CONTRACTION_MAP"]
