"""The workers of a pool: those that stay, those that are leaving, and those that hang."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakSet

from kserve_torch.engine.ticket import Ticket
from kserve_torch.engine.worker import Worker, WorkerState

#: Threads that may hang before the model is given up and liveness fails.
HUNG_LIMIT = 4


class Roster:
    """The workers of one pool; safe on any thread.

    A thread that hangs cannot be stopped: its worker is given up and counted (DESIGN law 3).

    Attributes:
        lock: held by callers whose decision needs several answers; reentrant.
        too_many_hang: `HUNG_LIMIT` is reached: only a new process helps. A plain attribute, because
            every request reads it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.too_many_hang = False
        self._hung: set[Worker] = set()
        #: Replaced, never changed, so that every request can look at it without the lock.
        self._workers: tuple[Worker, ...] = ()
        self._ending: WeakSet[threading.Thread] = WeakSet()

    # --- questions ---

    def all(self) -> list[Worker]:
        """The workers by number, also those that are leaving, but none that hang."""
        return list(self._workers)

    def staying(self) -> list[Worker]:
        """The workers that are not leaving."""
        return [worker for worker in self._workers if not worker.leaving]

    @property
    def size(self) -> int:
        """How many stay, ready or not."""
        return len(self.staying())

    @property
    def ready(self) -> int:
        """How many stay and are ready."""
        return sum(worker.state is WorkerState.READY for worker in self.staying())

    @property
    def hung(self) -> int:
        """How many hang."""
        return len(self._hung)

    def late(self, limit: float, now: float) -> tuple[list[tuple[Worker, float]], float | None]:
        """The workers whose call takes too long.

        Args:
            limit: seconds that a call may take.
            now: ``time.monotonic()``.

        Returns:
            These workers, each with the time at which its call began; and the seconds until the
            next call is late, None if no other call runs.
        """
        began = [
            (worker, since)
            for worker in self.all()
            if worker.state is not WorkerState.LOADING
            and (since := worker.busy_since()) is not None
        ]
        late = [(worker, since) for worker, since in began if since + limit <= now]
        left = (since + limit - now for _, since in began if since + limit > now)
        return late, min(left, default=None)

    def free_index(self) -> int:
        """The lowest index that no worker has; it decides on the worker's accelerator."""
        taken = {worker.index for worker in self.staying()}
        return next(index for index in itertools.count() if index not in taken)

    # --- changes ---

    def enter(self, worker: Worker) -> None:
        """Add a new worker."""
        with self.lock:
            self._workers = (*self._workers, worker)

    def remove(self, worker: Worker) -> None:
        """Remove a worker whose thread is ending."""
        with self.lock:
            self._forget(worker)
            self._ending.add(worker.thread)

    def give_up(self, worker: Worker, since: float) -> Sequence[Ticket] | None:
        """Give up a worker if it still hangs in the load or call that began at ``since``.

        Returns:
            The tickets that the caller must answer; None if that load or call has ended.
        """
        with self.lock:  # if its thread ends at once, `came_back` must find it
            batch = worker.abandon(since)
            if batch is not None:
                self._forget(worker)
                self._hung.add(worker)
                self.too_many_hang = self.hung >= HUNG_LIMIT
            return batch

    def came_back(self, worker: Worker) -> None:
        """Note that a hung thread ends after all."""
        with self.lock:
            self._hung.discard(worker)
            self.too_many_hang = self.hung >= HUNG_LIMIT
            worker.state = WorkerState.STOPPED

    async def join(self, seconds: float) -> bool:
        """Wait until all threads have ended, also those of removed workers that are cleaning up.

        It waits on a thread of its own: the event loop's executor has few, and a handler that hangs
        would block one of them.

        Returns:
            False if some still run after ``seconds``.
        """
        with self.lock:
            threads = [*(worker.thread for worker in self.all()), *self._ending]
        running = [thread for thread in threads if thread.is_alive()]
        if not running:
            return True
        loop, waited = asyncio.get_running_loop(), asyncio.Event()

        def wait() -> None:
            ends = time.monotonic() + seconds
            for thread in running:
                thread.join(max(0.0, ends - time.monotonic()))
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(waited.set)

        threading.Thread(target=wait, name="join", daemon=True).start()
        await waited.wait()
        return not any(thread.is_alive() for thread in running)

    def _forget(self, worker: Worker) -> None:
        self._workers = tuple(other for other in self._workers if other is not worker)
