"""What archives import as ``ts``: TorchServe's public names.

Modules here are small or only re-export. Names that need a missing package or accelerator can be
imported, but raise when used.
"""

from __future__ import annotations

from kserve_torch.ts.lazy import submodules
from kserve_torch.ts.version import __version__

__all__ = ["__version__"]

__getattr__ = submodules(__name__)
