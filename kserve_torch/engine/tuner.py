"""How many threads a model's operators should use, found out from the batches that it serves.

A second thread slows small batches down and takes a core from the event loop; large ones nearly
double their speed by it. So batches of about the same size are run with each candidate in turn
until it is clear what serves that size, and the smallest one that is about as fast as the best is
kept, until the next trial: what is best changes with the load and with the machine's neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Batches of a candidate in a row. The first is not counted: threads sleep where they are not used,
#: and wake up slowly.
TURN = 5
#: Seconds after which a turn ends sooner, with two batches at least; with one if that alone takes
#: so long, except in the first turn, in which a model may still be preparing itself.
TURN_SECONDS = 0.2
#: Turns of each candidate.
TURNS = 4
#: Seconds after which those that were had must do: long batches differ less from each other.
TRIAL_SECONDS = 1.0
#: How many times as long as the best the others must take to be out after one turn, where batches
#: are long: each further turn would cost clients as much again.
CLEAR = 1.25
#: Batches of a size from a trial that changed the choice to the next one: a neighbour on the
#: machine may have spoiled it. Each trial that confirms the choice doubles the pause, up to the
#: second number: a trial has some 40 batches, half of them with the slower candidate.
AGAIN, AGAIN_AT_MOST = 200, 8000
#: More threads have to save this share of the time, for they cost others a core.
WORTH = 0.05


class Tuner:
    """Settles on a thread count for each size of batch: 1 row, 2 to 3, 4 to 7, and so on.

    Args:
        candidates: thread counts to try, ascending; a single one is settled at once.
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        self._candidates = tuple(candidates)
        self._sizes: dict[int, _Size] = {}

    @property
    def most(self) -> int:
        """The largest thread count that may be chosen."""
        return self._candidates[-1]

    @property
    def half(self) -> int:
        """The thread count for batches beside which somebody else computes; not to be noted.

        Threads that wait for each other actively lose their cores to others for a whole time slice,
        and the others lose them to the waiting: with as many as there are cores, and one more, some
        predictions take 0.1 s instead of 5 ms.
        """
        return max(1, self.most // 2)

    def next(self, rows: int) -> int:
        """The thread count for the next batch, of so many rows."""
        return self._size(rows).trial.next()

    def note(self, rows: int, seconds: float) -> Trial | None:
        """Take note of a batch with the `next` count; the trial that it settled anew, if it did."""
        size = self._size(rows)
        trial = size.trial
        if trial.note(rows, seconds):
            return trial if size.settle() else None
        if trial.chosen is not None and len(self._candidates) > 1:
            size.left -= 1
            if size.left == 0:
                size.trial = Trial(self._candidates)
        return None

    def _size(self, rows: int) -> _Size:
        bits = rows.bit_length()
        if bits not in self._sizes:
            self._sizes[bits] = _Size(Trial(self._candidates))
        return self._sizes[bits]


@dataclass(slots=True)
class _Size:
    """Batches of one size: the trial, what the last one chose, batches between two and left."""

    trial: Trial
    chosen: int | None = None
    again: int = AGAIN
    left: int = AGAIN

    def settle(self) -> bool:
        """Take what the trial chose; whether that is something else than before."""
        changed, self.chosen = self.trial.chosen != self.chosen, self.trial.chosen
        if not changed:
            self.again = min(2 * self.again, AGAIN_AT_MOST)
        self.left = AGAIN if changed else self.again
        return changed


class Trial:
    """Tries each candidate on batches of one size.

    Attributes:
        chosen: the settled thread count, or None.
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        self._candidates = tuple(candidates)
        self._costs: dict[int, list[float]] = {count: [] for count in candidates}
        self._seconds = 0.0
        self._turns = 0
        self._turn: list[float] = []
        self.chosen: int | None = candidates[0] if len(self._candidates) == 1 else None

    def next(self) -> int:
        """The thread count for the next batch."""
        if self.chosen is not None:
            return self.chosen
        # The last one first: that its long batches count from the second on costs clients less.
        return self._candidates[-1 - self._turns % len(self._candidates)]

    def note(self, rows: int, seconds: float) -> bool:
        """Take note of a batch with the `next` count; True if this one settled the matter."""
        if self.chosen is not None:
            return False
        counts = bool(self._turn) or (self._turns > 0 and seconds >= TURN_SECONDS)
        self._turn.append(seconds)
        if not counts:
            return False
        self._costs[self.next()].append(seconds / max(rows, 1))
        if len(self._turn) < TURN and sum(self._turn) < TURN_SECONDS:
            return False
        self._seconds += sum(self._turn)
        self._turn = []
        self._turns += 1
        rounds, others_to_come = divmod(self._turns, len(self._candidates))
        if others_to_come:
            return False
        if rounds == TURNS or self._seconds >= TRIAL_SECONDS or self._is_clear():
            self.chosen = self._best()
        return self.chosen is not None

    def _is_clear(self) -> bool:
        """Whether batches are long, and one candidate is far ahead of all others."""
        best, *others = sorted(map(self.cost, self._candidates))
        return self._seconds >= TURN_SECONDS * len(self._candidates) and others[0] > CLEAR * best

    def _best(self) -> int:
        best = self._candidates[0]
        for count in self._candidates[1:]:
            if self.cost(count) < (1 - WORTH) * self.cost(best):
                best = count
        return best

    def cost(self, count: int) -> float:
        """Seconds per row with ``count`` threads: the lower quartile of the batches that count.

        The first batch of each exact size also pays for what the operators prepare for that size.
        """
        costs = sorted(self._costs[count])
        return costs[len(costs) // 4]
