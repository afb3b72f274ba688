"""How many workers of a queue are at work at once: all, unless fewer answer more.

The workers of one process fight for its cores and for the interpreter's lock. Of a small model,
five at work each take more than five times as long; of a large one, two may be faster than one;
those whose calls sleep or wait for others gain from each further one. So while the queue keeps
them all busy, some numbers are tried, and all work at once unless fewer answer clearly more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from kserve_torch.engine.trial import Choice, Trial

#: Seconds after which a call no longer counts: what waits behind it is let in.
SLOW_SECONDS = 0.1
#: Calls are short that take less than so many seconds of processor time each.
SHORT_CALL = 0.05
#: Cores that calls must keep busy; else they rather wait for something else.
BUSY_CORES = 0.5
#: The share of a turn that workers may wait for requests, or it tells nothing about their speed.
IDLE_SHARE = 0.1
#: The first batches of a turn do not count: others are still at work, and the queue waits longer
#: until it knows how many clients there are.
UNCOUNTED_BATCHES = 8
#: Then a turn has at least so many batches, and seconds: at first, workers that keep the event loop
#: from its work have a queue to live on.
TURN_BATCHES, TURN_SECONDS = 12, 0.5
#: A trial ends early after so many seconds.
TRIAL_SECONDS = 6.0


class Gate:
    """Says when a worker may take a batch, by how many are at work; not safe on several threads.

    Args:
        clock: the time, in seconds.
        worked: processor time of the calling thread, in seconds.

    Attributes:
        width: how many may be at work.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._worked = worked
        self._workers = self.width = 1
        self._choice = Choice(Trial((1,)))
        #: How many sufficed when more were tried, until it is time to try again.
        self._enough = math.inf
        #: The oldest first.
        self._running: dict[Hashable, _Batch] = {}
        self._turn = _Turn()
        #: Seconds that a batch took in the last turn of each width.
        self._usual: dict[int, float] = {}

    def resize(self, workers: int) -> None:
        """Set how many workers there are; if there are more than before, fewer are tried, too."""
        more, self._workers = workers > self._workers, workers
        if more or self.width > workers or self._choice.trial.chosen is None:
            self._try()

    def opens(self) -> float:
        """Seconds until one more worker may take a batch if no other ends before; 0.0 for now."""
        if self.width >= self._workers:
            return 0.0
        now = self._clock()
        quick = [batch.began for batch in self._running.values() if not batch.is_slow(now)]
        return 0.0 if len(quick) < self.width else quick[-self.width] + SLOW_SECONDS - now

    @property
    def is_enough(self) -> bool:
        """Whether a further worker would be of no use: it would be held back."""
        if self.width >= self._workers < self._enough:
            return False
        now = self._clock()
        return not any(batch.is_slow(now) for batch in self._running.values())

    def begin(self, worker: Hashable, requests: int, idle: float) -> None:
        """Note, on a worker's thread, that it begins a batch.

        Args:
            worker: which one.
            requests: of the batch.
            idle: seconds that it waited for them, without being held back.
        """
        if self._workers > 1 or self._enough < math.inf:
            self._running[worker] = _Batch(self._clock(), self._worked(), requests, idle)

    def give_up(self, worker: Hashable) -> None:
        """Forget a worker that does not end its batch."""
        self._running.pop(worker, None)

    def end(self, worker: Hashable) -> Trial | None:
        """Note, on a worker's thread, that it has answered its batch, if it had one.

        Returns:
            The trial, if that changed the choice; its costs are seconds per request.
        """
        batch = self._running.pop(worker, None)
        if batch is None:
            return None
        now, choice, turn = self._clock(), self._choice, self._turn
        if choice.trial.chosen is not None:
            seconds = now - batch.began
            if choice.is_due(seconds, seconds / self.width):
                self._try()
        else:
            turn.note(batch, now, self._worked())
            if turn.batches >= TURN_BATCHES and now - turn.since >= TURN_SECONDS:
                return self._end_turn(turn, now - turn.since)
        return None

    def _end_turn(self, turn: _Turn, seconds: float) -> Trial | None:
        choice, trial = self._choice, self._choice.trial
        full = turn.idle <= IDLE_SHARE * seconds * self.width
        if not full or not (trial.turns or turn.is_contended(seconds)):
            self._try()  # from the start: while there are few requests, nobody is held back
            return None
        self._usual[self.width] = turn.busy / turn.batches
        trial.end_turn([seconds / turn.answers], seconds, long=True)
        self._next_turn()
        if trial.chosen is None:
            return None
        self._enough = trial.chosen if trial.chosen < trial.most else math.inf
        before = choice.chosen or trial.most
        choice.settle(self._usual[trial.chosen])
        return trial if trial.chosen != before else None

    def _try(self) -> None:
        self._enough = math.inf
        self._choice.trial = Trial(_widths(self._workers), TRIAL_SECONDS, fewest=False)
        self._next_turn()

    def _next_turn(self) -> None:
        self.width = self._choice.trial.next()
        self._turn = _Turn()


def _widths(workers: int) -> list[int]:
    """The numbers that are tried, ascending."""
    widths = [workers]
    while widths[0] > 1:
        widths.insert(0, widths[0] // 2)
    return widths


@dataclass(frozen=True, slots=True)
class _Batch:
    """A running batch.

    Attributes:
        began: when it did.
        worked: processor time of its thread until then.
        requests: that it has.
        idle: seconds that the worker waited for them.
    """

    began: float
    worked: float
    requests: int
    idle: float

    def is_slow(self, now: float) -> bool:
        return now - self.began >= SLOW_SECONDS


@dataclass(slots=True)
class _Turn:
    """What was seen with some width.

    Attributes:
        since: from when on it counts.
        batches: that count.
        answers: requests in them.
        idle: seconds that workers waited for them.
        busy: seconds that they took.
        worked: processor time that they took.
        uncounted: batches until it counts.
    """

    since: float = 0.0
    batches: int = 0
    answers: int = 0
    idle: float = 0.0
    busy: float = 0.0
    worked: float = 0.0
    uncounted: int = UNCOUNTED_BATCHES

    def note(self, batch: _Batch, now: float, worked: float) -> None:
        """Note that a batch is answered now, with its thread's processor time."""
        if self.uncounted:
            self.uncounted -= 1
            self.since = now
            return
        self.batches += 1
        self.answers += batch.requests
        self.idle += batch.idle
        self.busy += now - batch.began
        self.worked += worked - batch.worked

    def is_contended(self, seconds: float) -> bool:
        """Whether workers may have been in each other's way."""
        short = self.worked < SHORT_CALL * self.batches
        return short and self.worked >= BUSY_CORES * seconds
