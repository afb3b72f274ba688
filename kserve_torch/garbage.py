"""How often Python looks for garbage among all objects.

It does so after a number of allocations, and holds the interpreter's lock meanwhile: for 0.3 s once
a handler has imported transformers. With requests of a thousand rows, or answers of a number per
pixel, that was most of the time.
"""

from __future__ import annotations

import gc
import time
from typing import Any

#: After a full collection Python begins no other one for this many times its duration.
REST = 20
_NEVER = 2**31 - 1


class Throttle:
    """A callback of `gc`. Whoever asks for a collection gets it; young objects are not affected."""

    def __init__(self) -> None:
        self._usual = 0
        self._began = self._rests_until = 0.0

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Note that a collection starts or stops."""
        now = time.monotonic()
        if phase == "start":
            self._began = now
            return
        young, middle, full = gc.get_threshold()
        if info["generation"] == 2:
            self._rests_until = now + REST * (now - self._began)
            if full != _NEVER:
                self._usual = full
                gc.set_threshold(young, middle, _NEVER)
        elif full == _NEVER and now >= self._rests_until:
            gc.set_threshold(young, middle, self._usual)
