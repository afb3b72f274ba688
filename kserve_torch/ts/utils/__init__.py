"""``ts.utils``."""

from __future__ import annotations

from kserve_torch.ts.late import modules

__getattr__ = modules(__name__)
