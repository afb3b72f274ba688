"""``ts.handler_utils.utils``."""

from __future__ import annotations

import importlib
from typing import Any

from kserve_torch.ts.protocol.otf_message_handler import (
    create_predict_response,
    send_intermediate_predict_response,
)

__all__ = ["create_predict_response", "import_class", "send_intermediate_predict_response"]


def import_class(module_name: str, class_name: str, module_prefix: str | None = None) -> Any:
    """The class ``class_name`` of a module.

    Raises:
        ImportError: there is no such module, or no such class in it.
    """
    name = f"{module_prefix}.{module_name}" if module_prefix else module_name
    module = importlib.import_module(name)
    if not hasattr(module, class_name):
        raise ImportError(f"module {name} has no class {class_name}", name=name)
    return getattr(module, class_name)
