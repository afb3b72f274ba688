"""``ts.handler_utils.utils``."""

from __future__ import annotations

from typing import Any

from kserve_torch.namespace.scopes import import_module
from kserve_torch.runtime.context import Context
from kserve_torch.ts.protocol.otf_message_handler import (
    create_predict_response,
    send_intermediate_predict_response,
)

__all__ = [
    "Context",
    "create_predict_response",
    "import_class",
    "send_intermediate_predict_response",
]


def import_class(class_name: str, module_prefix: str | None = None) -> Any:
    """The class at the end of a dotted name, from the calling handler's archive or installed.

    Args:
        class_name: ``module.Class``, or ``Class`` alone with a prefix.
        module_prefix: what goes before the module's name, or the module itself.

    Raises:
        ImportError: the name holds no module, there is no such module, or no such class in it.
    """
    module_name, _, name = class_name.rpartition(".")
    module_name = ".".join(part for part in (module_prefix, module_name) if part)
    if not module_name or not name:
        raise ImportError(f"class name {class_name!r}: expected module.Class")
    found = getattr(import_module(module_name), name, None)
    if found is None:
        raise ImportError(f"module {module_name} has no class {name}", name=module_name)
    return found
