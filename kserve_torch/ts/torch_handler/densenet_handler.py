"""``ts.torch_handler.densenet_handler``."""

from __future__ import annotations

from kserve_torch.handler.densenet import DenseNetHandler

__all__ = ["DenseNetHandler"]
