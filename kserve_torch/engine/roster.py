"""The workers of a pool: those that stay and those that are leaving."""

from __future__ import annotations

import itertools
import threading
from weakref import WeakSet

from kserve_torch.engine.worker import Worker, WorkerState


class Roster:
    """The workers of one pool; safe on any thread.

    Attributes:
        lock: held by callers whose decision needs several answers; reentrant.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._staying: dict[int, Worker] = {}
        self._leaving: dict[int, Worker] = {}
        self._ending: WeakSet[threading.Thread] = WeakSet()

    # --- questions ---

    def all(self) -> list[Worker]:
        """The workers that stay and those that are leaving, but none that hang."""
        with self.lock:
            return [*self._staying.values(), *self._leaving.values()]

    def staying(self) -> list[Worker]:
        """The workers that are not leaving, by number."""
        with self.lock:
            return list(self._staying.values())

    def threads(self) -> list[threading.Thread]:
        """The threads of `all`, and of removed workers that are still cleaning up."""
        with self.lock:
            return [*(worker.thread for worker in self.all()), *self._ending]

    @property
    def size(self) -> int:
        """How many stay, ready or not."""
        return len(self._staying)

    @property
    def ready(self) -> int:
        """How many stay and are ready."""
        return sum(worker.state is WorkerState.READY for worker in self.staying())

    def free_index(self) -> int:
        """The lowest index that no worker has; it decides on the worker's accelerator."""
        taken = {worker.index for worker in self.staying()}
        return next(index for index in itertools.count() if index not in taken)

    # --- changes ---

    def enter(self, worker: Worker) -> None:
        """Add a new worker."""
        with self.lock:
            self._staying[worker.number] = worker

    def leave(self, worker: Worker) -> None:
        """Note that a worker stops after the batch that it runs."""
        with self.lock:
            if self._staying.pop(worker.number, None) is not None:
                self._leaving[worker.number] = worker

    def remove(self, worker: Worker) -> None:
        """Remove a worker whose thread is ending."""
        with self.lock:
            self.give_up(worker)
            self._ending.add(worker.thread)

    def give_up(self, worker: Worker) -> None:
        """Remove a worker whose thread may never end."""
        with self.lock:
            self._staying.pop(worker.number, None)
            self._leaving.pop(worker.number, None)
