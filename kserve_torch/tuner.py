"""How many threads a model's operators should use, found out from the batches that it serves.

Small models are slowed down by a second thread, which also takes a core from the event loop; large
ones nearly double their speed. So the first batches are run with each candidate in turn, and the
smallest one that is about as fast as the best is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

#: Batches per candidate, behind one that is not counted: the first pays for buffers and threads.
TRIALS = 12
#: Batches after which a candidate that is no faster at all is given up.
FEW = 3
#: More threads have to save this share of the time, for they cost others a core.
WORTH = 0.15


class Tuner:
    """Tries each candidate and settles on one.

    Args:
        candidates: thread counts to try, ascending; a single one is settled at once.
    """

    def __init__(self, candidates: Sequence[int]) -> None:
        self._candidates = tuple(candidates)
        self._costs: dict[int, list[float]] = {count: [] for count in candidates}
        self.chosen: int | None = candidates[0] if len(self._candidates) == 1 else None

    def next(self) -> int:
        """The thread count for the next batch."""
        if self.chosen is not None:
            return self.chosen
        return min(self._candidates, key=lambda count: len(self._costs[count]))

    def note(self, count: int, rows: int, seconds: float) -> bool:
        """Take note of a batch; True if this one settled the matter."""
        if self.chosen is not None or not rows:
            return False
        self._costs[count].append(seconds / rows)
        tried = min(len(costs) - 1 for costs in self._costs.values())
        best = self._best() if tried >= FEW else None
        if tried == TRIALS or (tried >= FEW and best == self._fastest() == self._candidates[0]):
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
        """Median seconds per row with ``count`` threads, of the batches that count."""
        return median(self._costs[count][1:])
