"""Times of a handler's steps as metrics, for models whose configuration enables them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from kserve_torch.runtime.devices import current_stream

R = TypeVar("R")


def timed(func: Callable[..., R]) -> Callable[..., R]:
    """Report a step's ms as ``ts_handler_<step>`` if ``handler.profile`` is true (CONTRACT M6)."""

    @wraps(func)
    def step(self: Any, *args: Any, **kwargs: Any) -> R:
        if not _wanted(self.context):
            return func(self, *args, **kwargs)
        start = _now()
        result = func(self, *args, **kwargs)
        self.context.metrics.add_time(f"ts_handler_{func.__name__}", (_now() - start) * 1000)
        return result

    return step


def _wanted(context: Any) -> bool:
    config = getattr(context, "model_yaml_config", None)
    section = config.get("handler") if config else None
    return isinstance(section, dict) and bool(section.get("profile"))


def _now() -> float:
    """Seconds, after the device has finished what this thread has queued."""
    stream = current_stream()
    if stream is not None:
        stream.synchronize()
    return time.perf_counter()
