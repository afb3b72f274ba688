"""How many threads a model's operators should use, found out from the batches that it serves.

A second thread slows small batches down and takes a core from the event loop; large ones nearly
double their speed by it. So batches of about the same size are run with each candidate in turn
until it is clear what serves that size, and the smallest one that is about as fast as the best is
kept.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Batches of a candidate in a row. The first is not counted: threads sleep where they are not used,
#: and wake up slowly.
TURN = 5
#: Turns of each candidate.
TURNS = 4
#: Turns after which a candidate that is no faster at all is given up.
FEW = 2
#: More threads have to save this share of the time, for they cost others a core.
WORTH = 0.15


class Tuner:
    """Settles on a thread count for each size of batch: 1 row, 2 to 3, 4 to 7, and so on.

    Args:
        candidates: thread counts to try, ascending; a single one is settled at once.
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        self._candidates = tuple(candidates)
        self._trials: dict[int, Trial] = {}

    def next(self, rows: int) -> int:
        """The thread count for the next batch, of so many rows."""
        return self._trial(rows).next()

    def note(self, count: int, rows: int, seconds: float) -> Trial | None:
        """Take note of a batch; what it settled, if it did."""
        trial = self._trial(rows)
        return trial if trial.note(count, seconds / max(rows, 1)) else None

    def _trial(self, rows: int) -> Trial:
        size = rows.bit_length()
        if size not in self._trials:
            self._trials[size] = Trial(self._candidates)
        return self._trials[size]


class Trial:
    """Tries each candidate on batches of one size.

    Attributes:
        chosen: the settled thread count, or None.
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        self._candidates = tuple(candidates)
        self._costs: dict[int, list[float]] = {count: [] for count in candidates}
        self._batches = 0
        self.chosen: int | None = candidates[0] if len(self._candidates) == 1 else None

    def next(self) -> int:
        """The thread count for the next batch."""
        if self.chosen is not None:
            return self.chosen
        return self._candidates[self._batches // TURN % len(self._candidates)]

    def note(self, count: int, cost: float) -> bool:
        """Take note of a batch's seconds per row; True if this one settled the matter."""
        if self.chosen is not None:
            return False
        if self._batches % TURN:
            self._costs[count].append(cost)
        self._batches += 1
        turns, within = divmod(self._batches, TURN * len(self._candidates))
        if within or turns < FEW:
            return False
        best = self._best()
        if turns == TURNS or best == self._fastest() == self._candidates[0]:
            self.chosen = best
        return self.chosen is not None

    def _fastest(self) -> int:
        return min(self._candidates, key=self.cost)

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
