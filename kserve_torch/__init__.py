"""Serves TorchServe archives on KServe, in one Python process.

Importing this package is cheap: torch and kserve are imported when a name first needs them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kserve_torch.handler.base import BaseHandler
    from kserve_torch.sdk.model import TorchModel
    from kserve_torch.sdk.repository import TorchModelRepository
    from kserve_torch.server import serve

__version__ = "0.1.0"

__all__ = ["BaseHandler", "TorchModel", "TorchModelRepository", "__version__", "serve"]

_HOMES = {
    "BaseHandler": "kserve_torch.handler.base",
    "TorchModel": "kserve_torch.sdk.model",
    "TorchModelRepository": "kserve_torch.sdk.repository",
    "serve": "kserve_torch.server",
}


def __getattr__(name: str) -> Any:
    """Imports a public name's module when the name is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "torch" not in sys.modules:  # a program that serves by itself, in a container of its own
        import_module("kserve_torch.runtime.machine").set_thread_variables()
    return getattr(import_module(_HOMES[name]), name)
