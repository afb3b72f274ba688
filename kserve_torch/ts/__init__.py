"""What archives import as ``ts``: TorchServe's public names, each from where it lives here.

A module here re-exports or is small; docstrings say where a rule comes from, not how TorchServe did
it. Names that need an absent package or accelerator can be imported, and raise when used.
"""

from __future__ import annotations

from kserve_torch.ts.late import modules
from kserve_torch.ts.version import __version__

__all__ = ["__version__"]

__getattr__ = modules(__name__)
