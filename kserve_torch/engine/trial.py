"""Finds the fastest of a few settings by trying them on the work that comes, one after the other.

A trial is repeated from time to time, because the best setting changes with the load and with what
else runs on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

#: A turn of so many seconds is long: clients notice it.
LONG_TURN = 0.2
#: Turns of each candidate.
TURNS = 4
#: A trial of threads ends early after so many seconds: long batches vary less.
TRIAL_SECONDS = 1.0
#: If turns are long, the best candidate wins after one turn if all others take this many times as
#: long: each further turn would cost clients as much again.
CLEAR = 1.25
#: How long the work takes between two trials, as a multiple of the trial's own time. A trial that
#: changed the choice is repeated after the first multiple: another program may have disturbed it;
#: after twice that if it chose the largest candidate, which others make slower. Each that confirms
#: the choice doubles the pause, up to the second multiple: trials cost time, as all candidates but
#: one are slower. The pause is not a number of batches: after a disturbed trial, a large model
#: would run them for minutes with the wrong choice.
AGAIN, AGAIN_AT_MOST = 5.0, 200.0
#: A trial comes early once so many batches in a row cost so many times as much as in the last one:
#: beside another program, threads that wait for each other may take twenty times as long.
SLOW_BATCHES, SLOWER = 10, 2.5
#: The share of the cost that another candidate must save to be chosen instead of the usual one.
WORTH = 0.05


class Trial:
    """Tries each candidate, in turns.

    Args:
        candidates: ascending; a single one needs no trial.
        longest: seconds after which it ends early.
        fewest: whether of those that cost about the same the smallest is chosen, or the largest.

    Attributes:
        chosen: the candidate that it chose, or None before its end.
        seconds: that its turns have taken.
        turns: how many there were.
    """

    def __init__(
        self, candidates: Sequence[int], longest: float = TRIAL_SECONDS, fewest: bool = True
    ) -> None:
        self._candidates = tuple(candidates)
        self._longest = longest
        self._fewest = fewest
        self._costs: dict[int, list[float]] = {count: [] for count in candidates}
        self.seconds = 0.0
        self.turns = 0
        self.chosen: int | None = candidates[0] if len(self._candidates) == 1 else None

    @property
    def most(self) -> int:
        """The largest candidate."""
        return self._candidates[-1]

    def next(self) -> int:
        """The candidate of the present turn."""
        if self.chosen is not None:
            return self.chosen
        # The largest first: the first turn always wastes a batch, and with it that is shortest.
        return self._candidates[-1 - self.turns % len(self._candidates)]

    def end_turn(self, costs: Sequence[float], seconds: float, long: bool) -> bool:
        """Note a turn with the `next` candidate; True if it ended the trial.

        Args:
            costs: what was measured in it, at least once.
            seconds: how long it took.
            long: whether clients notice it: who is far behind in the first turn has no other.
        """
        self._costs[self.next()].extend(costs)
        self.seconds += seconds
        self.turns += 1
        if self.turns <= len(self._candidates) and long:
            self._drop_if_slow()
        rounds, others_to_come = divmod(self.turns, len(self._candidates))
        if others_to_come:
            return False
        if rounds == TURNS or self.seconds >= self._longest or self._is_clear():
            self.chosen = self._best()
        return self.chosen is not None

    def _drop_if_slow(self) -> None:
        """Drop the candidate of the first round's last turn, and the smaller ones, if it is slow.

        With fewer threads still, a long batch would keep clients waiting for nothing: on 64 cores a
        batch of one second may take half a minute with one thread.
        """
        slowest, *larger = self._candidates[-self.turns :]
        if larger and self.cost(slowest) > CLEAR * min(map(self.cost, larger)):
            self._candidates = tuple(larger)
            self.turns = len(larger)

    def _is_clear(self) -> bool:
        """Whether turns are long and the best candidate is far ahead of all others."""
        best, *others = sorted(map(self.cost, self._candidates))
        long = self.seconds >= LONG_TURN * len(self._candidates)
        return not others or (long and others[0] > CLEAR * best)

    def _best(self) -> int:
        best, *others = self._candidates if self._fewest else reversed(self._candidates)
        for count in others:
            if self.cost(count) < (1 - WORTH) * self.cost(best):
                best = count
        return best

    def cost(self, count: int) -> float:
        """What the candidate costs: the lower quartile of what was measured.

        Some are slower for another reason: operators prepare themselves for each size of batch.
        """
        costs = sorted(self._costs[count])
        return costs[len(costs) // 4]


class Choice:
    """What the last trial chose, and when it is time for the next one.

    Attributes:
        trial: the present one, or the last if that has ended.
        chosen: what the last one chose; None before its end.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.chosen: int | None = None
        #: The pause from its end to the next one, as a multiple of its time.
        self._again = AGAIN
        #: Seconds that batches still take until then.
        self._left = 0.0
        #: What a batch cost in the last trial.
        self._usual = 0.0
        #: How many of the last batches cost much more.
        self._slow = 0

    def is_due(self, cost: float, seconds: float) -> bool:
        """Whether it is time for the next trial, after a batch with the choice.

        Args:
            cost: the batch's, measured as what `settle` was told.
            seconds: that it took.
        """
        self._left -= seconds
        self._slow = self._slow + 1 if cost > SLOWER * self._usual else 0
        return self._left <= 0 or self._slow == SLOW_BATCHES

    def settle(self, usual: float) -> bool:
        """Take over what the trial chose; True if that is a change.

        Args:
            usual: what a batch cost with it.
        """
        chosen = self.trial.chosen
        assert chosen is not None
        changed, self.chosen = chosen != self.chosen, chosen
        self._usual, self._slow = usual, 0
        pause = AGAIN if chosen < self.trial.most else 2 * AGAIN
        if not changed:
            self._again = pause = min(2 * self._again, AGAIN_AT_MOST)
        self._left = pause * self.trial.seconds
        return changed
