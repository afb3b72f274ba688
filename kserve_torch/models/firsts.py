"""The instances of a model version whose weights the later ones share: one on each device.

Once a handler has written to its weights, none are shared any more: what it has loaded since is not
for others, and the instances that hold the same weights are loaded anew, each with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kserve_torch.engine.worker import Worker, WorkerState

if TYPE_CHECKING:
    from kserve_torch.runtime.instance import Instance


class Firsts:
    """Says whose weights a new instance shares, as long as none has written to them.

    Args:
        workers: those that there are now; called on any thread.
    """

    def __init__(self, workers: Callable[[], Iterable[Worker]]) -> None:
        self._workers = workers
        self._ended = False

    def on(self, gpu_id: int | None) -> Instance | None:
        """The first one on a GPU, or with None on the CPU; None if there is none yet."""
        if self._ended:
            return None
        loaded = (worker.instance for worker in self._workers())
        return next((one for one in loaded if one is not None and one.gpu_id == gpu_id), None)

    def changed(self, worker: Worker) -> None:
        """Note that a worker has another state."""
        ready = worker.instance if worker.state is WorkerState.READY else None
        if ready is not None and ready.weights.were_written:  # by another one, as it loaded
            self.renew()

    def renew(self) -> None:
        """Share no more, and replace workers whose weights another one's handler has written to."""
        self._ended = True
        for worker in self._workers():
            instance = worker.instance
            if instance is not None and instance.weights.are_outdated:
                worker.stop()
