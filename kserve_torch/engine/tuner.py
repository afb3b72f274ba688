"""The number of intra-op threads of a model, tuned on the batches that it serves.

A second thread slows small batches down and takes a core from the event loop, but nearly doubles
the speed of large ones. So batches of about the same size are run with each candidate in turn, and
the smallest candidate that is about as fast as the best is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from kserve_torch.engine.trial import LONG_TURN, Choice, Trial

#: Consecutive batches that a candidate gets in one turn. The first is not counted: threads that
#: were not used sleep, and wake up slowly. A turn ends early if it is long, but not before its
#: second batch. A single batch that takes this long is a whole turn, except in the first turn,
#: where the model may still warm up.
TURN = 5


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
        trial, cost = size.trial, seconds / max(rows, 1)
        if trial.chosen is None:
            ended = size.note(cost, seconds)
            return trial if ended and size.settle(trial.cost(trial.next())) else None
        if len(self._candidates) > 1 and size.is_due(cost, seconds):
            size.trial = Trial(self._candidates)
        return None

    def _size(self, rows: int) -> _Size:
        bits = rows.bit_length()
        if bits not in self._sizes:
            self._sizes[bits] = _Size(Trial(self._candidates))
        return self._sizes[bits]


class _Size(Choice):
    """One size of batch; costs are seconds per row."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self._costs: list[float] = []
        self._batches = 0
        self._seconds = 0.0

    def note(self, cost: float, seconds: float) -> bool:
        """Note a batch of a trial; True if it ended the trial."""
        counts = self._batches > 0 or (self.trial.turns > 0 and seconds >= LONG_TURN)
        self._batches += 1
        self._seconds += seconds
        if not counts:
            return False
        self._costs.append(cost)
        long = self._seconds >= LONG_TURN
        if self._batches < TURN and not long:
            return False
        ended = self.trial.end_turn(self._costs, self._seconds, long)
        self._costs, self._batches, self._seconds = [], 0, 0.0
        return ended
