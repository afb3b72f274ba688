"""``ts.utils.timeit_decorator``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def timeit(func: Callable[P, R]) -> Callable[P, R]:
    """Print how long each call takes, in seconds: wall-clock time, and the process's CPU time."""

    @wraps(func)
    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        clock, computing = time.perf_counter(), time.process_time()
        result = func(*args, **kwargs)
        clock, computing = time.perf_counter() - clock, time.process_time() - computing
        print(f"func: {func.__name__!r} took {clock:.4f} s, {computing:.4f} s of CPU time")
        return result

    return timed
