"""Who works in a pool: the workers that stay, those on their way out, and those that hang."""

from __future__ import annotations

import itertools
import threading
from weakref import WeakSet

from kserve_torch.engine.worker import Worker, WorkerState


class Roster:
    """The workers of one pool; on any thread.

    Attributes:
        lock: for whoever decides by more than one answer.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._staying: dict[int, Worker] = {}
        self._leaving: dict[int, Worker] = {}
        self._hung: dict[int, Worker] = {}
        self._ending: WeakSet[threading.Thread] = WeakSet()

    # --- questions ---

    def all(self) -> list[Worker]:
        """The workers that are there, also those on their way out; none that hang."""
        with self.lock:
            return [*self._staying.values(), *self._leaving.values()]

    def staying(self) -> list[Worker]:
        """The workers that can be counted on, by number."""
        with self.lock:
            return list(self._staying.values())

    def threads(self) -> list[threading.Thread]:
        """Those of `all`, and those of workers that were forgotten while they tidied up."""
        with self.lock:
            return [*(worker.thread for worker in self.all()), *self._ending]

    @property
    def size(self) -> int:
        """How many can be counted on, ready or not."""
        return len(self._staying)

    @property
    def ready(self) -> int:
        """How many can take a batch, and another one after it."""
        return sum(worker.state is WorkerState.READY for worker in self.staying())

    @property
    def hung(self) -> int:
        """Threads that were given up and have not come back."""
        return len(self._hung)

    def free_index(self) -> int:
        """The lowest index that nobody has: accelerators are handed out by it."""
        taken = {worker.index for worker in self.staying()}
        return next(index for index in itertools.count() if index not in taken)

    # --- changes ---

    def enter(self, worker: Worker) -> None:
        """Count on a new worker."""
        with self.lock:
            self._staying[worker.number] = worker

    def leave(self, worker: Worker) -> None:
        """Count no longer on one that goes home after the batch that it runs."""
        with self.lock:
            if self._staying.pop(worker.number, None) is not None:
                self._leaving[worker.number] = worker

    def remove(self, worker: Worker) -> None:
        """Forget one whose thread ends."""
        with self.lock:
            self._take_off(worker)
            self._ending.add(worker.thread)

    def hang(self, worker: Worker) -> None:
        """Give one up."""
        with self.lock:
            self._take_off(worker)
            self._hung[worker.number] = worker

    def _take_off(self, worker: Worker) -> None:
        self._staying.pop(worker.number, None)
        self._leaving.pop(worker.number, None)

    def came_back(self, worker: Worker) -> bool:
        """Forget one that was given up; False if it was forgotten already."""
        with self.lock:
            return self._hung.pop(worker.number, None) is not None
