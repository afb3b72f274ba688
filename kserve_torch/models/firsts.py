"""The instances of a model version whose weights the later ones share: one on each device.

Not once a handler has written to them: what one instance has loaded since is not for others, and
those that hold its weights are loaded anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kserve_torch.engine.worker import Worker, WorkerState

if TYPE_CHECKING:
    from kserve_torch.runtime.instance import Instance


class Firsts:
    """The first instance on each device, and a successor once it has left.

    Args:
        workers: those that there are now; called on any thread.
    """

    def __init__(self, workers: Callable[[], Iterable[Worker]]) -> None:
        self._workers = workers
        self._by_device: dict[int | None, Instance] = {}
        self._lock = threading.Lock()
        self._ended = False

    def on(self, gpu_id: int | None) -> Instance | None:
        """The one on a GPU, or with None on the CPU; None if there is none yet."""
        return self._by_device.get(gpu_id)

    def add(self, instance: Instance) -> None:
        """Take a new instance as the first on its device, unless there is one."""
        instance.on_write = self._renew
        self._offer(instance)

    def _offer(self, instance: Instance) -> None:
        if not self._ended:
            self._by_device.setdefault(instance.gpu_id, instance)

    def changed(self, worker: Worker) -> None:
        """Note that a worker is ready, or is no longer."""
        instance = worker.instance
        if instance is None:
            return
        if worker.state is not WorkerState.READY:
            self.left(instance)
        elif instance.weights.were_written:  # it loaded meanwhile
            self._renew()

    def left(self, instance: Instance) -> None:
        """Let another instance take the place of one that has left: it would stay in memory."""
        with self._lock:  # several may leave at once, and must not take each other's place
            for gpu_id, first in list(self._by_device.items()):
                if first is instance:
                    del self._by_device[gpu_id]
            for worker in self._workers():
                other = worker.instance  # none any more once its thread ends
                if other is not None and other is not instance:
                    self._offer(other)

    def _renew(self) -> None:
        """Share no more, and replace workers whose weights another one's handler has written to."""
        self._ended = True
        self._by_device.clear()
        for worker in self._workers():
            instance = worker.instance
            if instance is not None and instance.weights.are_outdated:
                worker.stop()
