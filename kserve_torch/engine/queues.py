"""The two queues of a model version, and the workers on them.

Predictions and explanations wait in queues of their own: an explanation costs some fifty
predictions and must not stand in their way.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kserve_torch.engine.concurrent import ConcurrentWorker
from kserve_torch.engine.courtesy import Courtesy
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.pool import Pool
from kserve_torch.engine.ticket import deliver
from kserve_torch.engine.window import Window
from kserve_torch.engine.worker import Worker
from kserve_torch.errors import NotReady
from kserve_torch.events import BatchRan
from kserve_torch.messages import Verb
from kserve_torch.runtime.machine import cores, cpu_limit

if TYPE_CHECKING:
    from kserve_torch.runtime.instance import Instance
    from kserve_torch.settings import Limits

#: Explanations of a version that run at a time: two with one intra-op thread each are faster than
#: one with two.
EXPLAIN_WORKERS = 2


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """A snapshot of one model version, its two queues together.

    Attributes:
        queued: requests that wait.
        oldest_age: seconds that the oldest of them has waited.
        running: requests in running batches.
        inflight: requests that are accepted and not yet answered.
        hung: handler threads that were given up and still hang.
        workers: how many there are for predictions in each state.
    """

    queued: int
    oldest_age: float
    running: int
    inflight: int
    hung: int
    workers: Mapping[str, int]


class Queues:
    """Predictions in the foreground, explanations in the background.

    Args:
        load: makes an instance from its worker's index.
        ran: called on the event loop after each batch.
        changed: called on any thread whenever a worker changes its state.
        singly: whether each request is a batch of its own, whatever the limits say.
        concurrent: whether a worker runs many at once, each in a call of its own.

    Attributes:
        predict: the workers for predictions, and for all that is not an explanation.
        explain: the workers for explanations.
    """

    def __init__(
        self,
        model: str,
        version: str,
        limits: Limits,
        load: Callable[[int], Instance],
        ran: Callable[[BatchRan], None],
        changed: Callable[[Worker], None],
        singly: bool,
        concurrent: bool,
    ) -> None:
        self._label = f"{model} {version}"
        self._call_seconds = limits.response_timeout
        self._watch: asyncio.TimerHandle | None = None
        self._watch_loop: asyncio.AbstractEventLoop | None = None
        rows, delay = (
            (1, 0.0) if singly or concurrent else (limits.batch_size, limits.max_batch_delay)
        )

        def beside(index: int) -> Instance:
            # Where predictions are: on another GPU it would need the weights once more.
            return load(index % max(1, self.predict.roster.size))

        pool = functools.partial(Pool, ran=ran, changed=changed, limits=limits)
        self.predict = pool(
            Lane(model, version, Verb.PREDICT, Window(rows, delay, limits.queue_size)),
            load,
            crowded=lambda: self.explain.busy,
            kind=ConcurrentWorker if concurrent else Worker,
        )
        self.explain: Pool = pool(
            Lane(model, version, Verb.EXPLAIN, Window(1, 0.0, limits.queue_size)),
            beside,
            courtesy=Courtesy(lambda: self.predict.busy, cpu_limit()),
        )
        # The first request starts one.
        self.explain.staffing.maximum = 1 if singly else min(EXPLAIN_WORKERS, cores())
        self._pools = (self.predict, self.explain)

    def of(self, verb: Verb) -> Pool:
        """The pool that serves a verb."""
        return self.explain if verb is Verb.EXPLAIN else self.predict

    def watch(self) -> None:
        """Give up workers whose calls hang, until no call runs and no request waits.

        It does not go by the requests alone: a call whose clients have left still blocks its
        worker.
        """
        # A `TorchModel` may be called on several loops in turn. The timers of one that does not run
        # are late.
        if self._watch_loop is None or not self._watch_loop.is_running():
            self._look_in(self._call_seconds)

    def _look_in(self, seconds: float) -> None:
        self._watch_loop = asyncio.get_running_loop()
        self._watch = self._watch_loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._watch_loop = None
        left = [pool.give_up_hung() for pool in self._pools]
        soonest = min((wait for wait in left if wait is not None), default=None)
        if soonest is None and self.inflight:
            soonest = self._call_seconds
        if soonest is not None:
            self._look_in(soonest)

    async def stop(self, seconds: float) -> None:
        """Stop the workers; what still waits is answered with NotReady."""
        error = NotReady(f"Model {self._label} was unloaded")
        for pool in self._pools:
            deliver([(ticket, error) for ticket in pool.lane.close()])
            pool.close()
        if self._watch is not None:
            self._watch.cancel()
        ends = time.monotonic() + seconds
        for pool in self._pools:
            await pool.roster.join(max(0.0, ends - time.monotonic()))

    def statistics(self) -> VersionStatistics:
        """A snapshot."""
        lanes = [pool.lane for pool in self._pools]
        return VersionStatistics(
            queued=sum(lane.waiting for lane in lanes),
            oldest_age=max(lane.oldest_age() for lane in lanes),
            running=sum(pool.running for pool in self._pools),
            inflight=self.inflight,
            hung=self.hung,
            workers=Counter(worker.state.value for worker in self.predict.roster.staying()),
        )

    @property
    def live(self) -> bool:
        """False once so many threads hang that only a new process helps."""
        return not (self.predict.roster.too_many_hang or self.explain.roster.too_many_hang)

    @property
    def inflight(self) -> int:
        """Requests that are accepted and not yet answered."""
        return sum(pool.inflight for pool in self._pools)

    @property
    def hung(self) -> int:
        """How many threads hang."""
        return sum(pool.roster.hung for pool in self._pools)

    @property
    def workers(self) -> list[Worker]:
        """All workers, also those that are leaving, but none that hang."""
        return [worker for pool in self._pools for worker in pool.roster.all()]
