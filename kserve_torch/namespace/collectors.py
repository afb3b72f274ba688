"""Metrics that archives make with prometheus_client: all instances that make one share it.

Its registry is the process's, and takes one metric of a name. A worker of TorchServe is a process
with a registry of its own; here the second worker, and the next version, would fail to load.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from weakref import WeakSet

from kserve_torch.namespace.importhooks import after_import
from kserve_torch.namespace.scopes import current_scope

#: What archives have registered; the server's own metrics are none of theirs.
_archives: WeakSet[Any] = WeakSet()

#: Attributes of a metric that must be equal for two to be one.
_MEANING = ("_labelnames", "_upper_bounds")


def install() -> None:
    """From now on metrics that archives make may be made again."""
    after_import("prometheus_client.registry", _share)


def _share(module: Any) -> None:
    registry = module.CollectorRegistry
    registry.register = _sharing(registry.register)


def _sharing(register: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @wraps(register)
    def sharing(registry: Any, collector: Any) -> None:
        if current_scope() is None:
            register(registry, collector)
            return
        name = getattr(collector, "_name", None)
        known = registry._names_to_collectors.get(name)
        if known in _archives and _are_same(known, collector):
            vars(collector).update(vars(known))  # its values, and those by label
            return
        register(registry, collector)
        _archives.add(collector)

    return sharing


def _are_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and all(
        getattr(one, name, None) == getattr(other, name, None) for name in _MEANING
    )
