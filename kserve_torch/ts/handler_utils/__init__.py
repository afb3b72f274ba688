"""``ts.handler_utils``."""

from __future__ import annotations

from kserve_torch.ts.lazy import submodules

__getattr__ = submodules(__name__)
