"""How many intra-op threads each call of a worker has: what its tuners say, or fewer in a crowd."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kserve_torch.engine.tuner import Tuners
from kserve_torch.runtime.torchstate import compiles, use_threads

log = logging.getLogger(__name__)


class CallThreads:
    """Sets the number for the calls of one worker, on its thread, and tells its tuners of them.

    Args:
        label: of the worker's queue, for the log.
        crowded: whether others compute beside the worker.
    """

    def __init__(self, label: str, tuners: Tuners, crowded: Callable[[], bool]) -> None:
        self._label = label
        self._tuners = tuners
        self._crowded = crowded
        self._tuner = tuners.usual
        self._tried = False

    def for_load(self) -> None:
        """Set the number for a load: as many as there are ever to be.

        libgomp keeps and counts every intra-op thread that it ever made. Once the process has more
        of them than cores, none spins, which slows every model.
        """
        use_threads(self._tuners.usual.most)

    def for_call(self, rows: int) -> None:
        """Set the number for a call, of ``rows`` rows, that begins now."""
        crowded, compiled = self._crowded(), compiles()
        self._tuner = self._tuners.now()
        self._tried = not (crowded or compiled)
        if compiled:
            use_threads(self._tuners.usual.most)
        else:
            use_threads(self._tuner.half if crowded else self._tuner.next(rows))

    def answered(self, rows: int, seconds: float) -> None:
        """Note how long the call took, unless it failed."""
        settled = self._tuner.note(rows, seconds) if self._tried else None
        if settled is not None:
            log.info(
                "%s: using %d intra-op threads for batches of about %d rows: %.2f ms per row",
                self._label,
                settled.next(),
                rows,
                1000 * settled.cost(settled.next()),
            )
