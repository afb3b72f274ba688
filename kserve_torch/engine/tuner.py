"""The number of intra-op threads of a model, tuned on the batches that it serves.

A second thread slows small batches down and takes a core from the event loop, but nearly doubles
the speed of large ones. So batches of about the same size are run with each candidate in turn, and
the smallest candidate that is about as fast as the best is kept. The trial is repeated from time to
time, because the best count changes with the load and with what else runs on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Consecutive batches that a candidate gets in one turn. The first is not counted: threads that
#: were not used sleep, and wake up slowly.
TURN = 5
#: A turn ends early after so many seconds, but not before its second batch. A single batch that
#: takes this long is a whole turn, except in the first turn, where the model may still warm up.
TURN_SECONDS = 0.2
#: Turns of each candidate.
TURNS = 4
#: A trial ends early after so many seconds: long batches vary less.
TRIAL_SECONDS = 1.0
#: With long batches, the best candidate wins after one turn if all others take this many times as
#: long: each further turn would cost clients as much again.
CLEAR = 1.25
#: How long a size's batches compute between two trials, as a multiple of the trial's own time. A
#: trial that changed the choice is repeated after the first multiple: another program may
#: have disturbed it; after twice that if it chose the most threads, which others make slower. Each
#: that confirms the choice doubles the pause, up to the second multiple: trials cost time, as all
#: candidates but one are slower. The pause is not a number of batches: after a disturbed trial, a
#: large model would run them for minutes with the wrong choice.
AGAIN, AGAIN_AT_MOST = 5.0, 200.0
#: A trial comes early once so many batches in a row take so many times as long as in the last one:
#: beside another program, threads that wait for each other may take twenty times as long.
SLOW_BATCHES, SLOWER = 10, 2.5
#: The share of the time that more threads must save, since they take cores from others.
WORTH = 0.05


class Tuner:
    """Chooses a thread count for each size of batch: 1 row, 2 to 3, 4 to 7, and so on.

    Args:
        candidates: thread counts to try, ascending; a single one needs no trial.
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        self._candidates = tuple(candidates)
        self._sizes: dict[int, _Size] = {}

    @property
    def half(self) -> int:
        """The thread count for a batch that runs beside other work; do not `note` such a batch.

        Intra-op threads spin while they wait for each other. With more busy threads than cores,
        each loses its core for a whole time slice to one that only spins: some predictions then
        take 0.1 s instead of 5 ms.
        """
        return max(1, self._candidates[-1] // 2)

    def next(self, rows: int) -> int:
        """The thread count for the next batch, of ``rows`` rows."""
        return self._size(rows).trial.next()

    def note(self, rows: int, seconds: float) -> Trial | None:
        """Note a batch that ran with the `next` count; the trial, if that changed its choice."""
        size = self._size(rows)
        trial = size.trial
        if trial.note(rows, seconds):
            return trial if size.settle() else None
        if trial.chosen is not None and len(self._candidates) > 1 and size.is_due(rows, seconds):
            size.trial = Trial(self._candidates)
        return None

    def _size(self, rows: int) -> _Size:
        bits = rows.bit_length()
        if bits not in self._sizes:
            self._sizes[bits] = _Size(Trial(self._candidates))
        return self._sizes[bits]


@dataclass(slots=True)
class _Size:
    """One size of batch.

    Attributes:
        trial: the present one, or the last if that has ended.
        chosen: what the last one chose.
        again: the pause from its end to the next one, as a multiple of its time.
        left: seconds that batches still compute until then.
        cost: seconds per row of what the last one chose.
        slow: how many of the last batches took much longer.
    """

    trial: Trial
    chosen: int | None = None
    again: float = AGAIN
    left: float = 0.0
    cost: float = 0.0
    slow: int = 0

    def is_due(self, rows: int, seconds: float) -> bool:
        """Whether it is time for the next trial, after a batch that ran with the choice."""
        self.left -= seconds
        self.slow = self.slow + 1 if seconds > SLOWER * self.cost * max(rows, 1) else 0
        return self.left <= 0 or self.slow == SLOW_BATCHES

    def settle(self) -> bool:
        """Take over what the trial chose; True if that is a change."""
        chosen = self.trial.chosen
        assert chosen is not None
        changed, self.chosen = chosen != self.chosen, chosen
        self.cost, self.slow = self.trial.cost(chosen), 0
        pause = AGAIN if chosen < self.trial.most else 2 * AGAIN
        if not changed:
            self.again = pause = min(2 * self.again, AGAIN_AT_MOST)
        self.left = pause * self.trial.seconds
        return changed


class Trial:
    """Tries each candidate on batches of one size.

    Attributes:
        chosen: the thread count that it chose, or None before its end.
        seconds: that its batches have taken, in whole turns.
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        self._candidates = tuple(candidates)
        self._costs: dict[int, list[float]] = {count: [] for count in candidates}
        self.seconds = 0.0
        self._turns = 0
        self._turn: list[float] = []
        self.chosen: int | None = candidates[0] if len(self._candidates) == 1 else None

    @property
    def most(self) -> int:
        """The largest candidate."""
        return self._candidates[-1]

    def next(self) -> int:
        """The thread count for the next batch."""
        if self.chosen is not None:
            return self.chosen
        # The largest first: the first turn always wastes a batch, and with it that is shortest.
        return self._candidates[-1 - self._turns % len(self._candidates)]

    def note(self, rows: int, seconds: float) -> bool:
        """Note a batch that ran with the `next` count; True if it ended the trial."""
        if self.chosen is not None:
            return False
        counts = bool(self._turn) or (self._turns > 0 and seconds >= TURN_SECONDS)
        self._turn.append(seconds)
        if not counts:
            return False
        self._costs[self.next()].append(seconds / max(rows, 1))
        if len(self._turn) < TURN and sum(self._turn) < TURN_SECONDS:
            return False
        seconds_of_turn = sum(self._turn)
        self.seconds += seconds_of_turn
        self._turn = []
        self._turns += 1
        if self._turns <= len(self._candidates) and seconds_of_turn >= TURN_SECONDS:
            self._drop_if_slow()
        rounds, others_to_come = divmod(self._turns, len(self._candidates))
        if others_to_come:
            return False
        if rounds == TURNS or self.seconds >= TRIAL_SECONDS or self._is_clear():
            self.chosen = self._best()
        return self.chosen is not None

    def _drop_if_slow(self) -> None:
        """Drop the candidate of the first round's last turn, and the smaller ones, if it is slow.

        With fewer threads still, a long batch would keep clients waiting for nothing: on 64 cores a
        batch of one second may take half a minute with one thread.
        """
        slowest, *larger = self._candidates[-self._turns :]
        if larger and self.cost(slowest) > CLEAR * min(map(self.cost, larger)):
            self._candidates = tuple(larger)
            self._turns = len(larger)

    def _is_clear(self) -> bool:
        """Whether batches are long and the best candidate is far ahead of all others."""
        best, *others = sorted(map(self.cost, self._candidates))
        long = self.seconds >= TURN_SECONDS * len(self._candidates)
        return not others or (long and others[0] > CLEAR * best)

    def _best(self) -> int:
        best = self._candidates[0]
        for count in self._candidates[1:]:
            if self.cost(count) < (1 - WORTH) * self.cost(best):
                best = count
        return best

    def cost(self, count: int) -> float:
        """Seconds per row with ``count`` threads: the lower quartile of the counted batches.

        The first batch of each exact size is slower: operators prepare themselves for that size.
        """
        costs = sorted(self._costs[count])
        return costs[len(costs) // 4]
