"""How many intra-op threads each call of a worker has: what its tuners say, or fewer in a crowd."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from kserve_torch.engine.tuner import Tuner
from kserve_torch.runtime.torchstate import compiles, has_tried, thread_counts, use_threads

log = logging.getLogger(__name__)


class CallThreads:
    """Sets the number for the calls of one worker, on its thread, and tells its tuners of them.

    It has a tuner for each number of workers that share the cores at the moment.

    Args:
        label: of the worker's queue, for the log.
        usual: the number of workers that there always are.
        at_work: how many of them load or compute now, this one included.
        crowded: whether others compute beside the worker.
    """

    def __init__(
        self, label: str, usual: int, at_work: Callable[[], int], crowded: Callable[[], bool]
    ) -> None:
        self._label = label
        self._at_work = at_work
        self._crowded = crowded
        self._most = thread_counts(usual)[-1]
        self._among = functools.cache(lambda workers: Tuner(thread_counts(workers)))
        #: The one that is told how long the running call takes; None if none is.
        self._tuner: Tuner | None = None

    def for_load(self) -> None:
        """Set the number for a load: as many as there are ever to be.

        libgomp keeps and counts every intra-op thread that it ever made. Once the process has more
        of them than cores, none spins, which slows every model.
        """
        use_threads(self._most)

    def for_call(self, rows: int) -> None:
        """Set the number for a call, of ``rows`` rows, that begins now."""
        crowded, compiled = self._crowded(), compiles()
        tuner = self._among(self._at_work())
        self._tuner = None if crowded or compiled else tuner
        if compiled:
            use_threads(self._most)
        else:
            use_threads(tuner.half if crowded else tuner.next(rows))

    def answered(self, rows: int, seconds: float) -> None:
        """Note how long the call took, unless it failed."""
        usual = not has_tried()
        settled = self._tuner.note(rows, seconds) if usual and self._tuner is not None else None
        if settled is not None:
            log.info(
                "%s: using %d intra-op threads for batches of about %d rows: %.2f ms per row",
                self._label,
                settled.next(),
                rows,
                1000 * settled.cost(settled.next()),
            )
