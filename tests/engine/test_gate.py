"""`Gate` finds out how many workers are best at work at once, by a clock of the test's own."""

import itertools
import math
from collections.abc import Callable

import pytest

from kserve_torch.engine.gate import (
    SHORT_CALL,
    SLOW_SECONDS,
    TRIAL_SECONDS,
    TURN_BATCHES,
    UNCOUNTED_BATCHES,
    Gate,
)
from kserve_torch.engine.trial import AGAIN, SLOW_BATCHES, SLOWER, Trial

MS = 0.001


class Workers:
    """Workers that take a batch as soon as the gate is open and one has come.

    Args:
        count: how many there are.
        seconds: how long a batch takes, by how many are at work.
        share: of that time, how much is processor time.
        every: seconds from one batch that comes to the next.
    """

    def __init__(
        self,
        count: int,
        seconds: Callable[[int], float],
        share: float = 1.0,
        every: float = 0.0,
    ) -> None:
        self.seconds = seconds
        self.now = 1000.0
        self.gate = Gate(lambda: self.now, lambda: self.now * share)
        self.trials: list[Trial] = []
        self.every = every
        self.comes = self.now
        self._ends: dict[int, float] = {}
        self._open = self.now
        self.scale(count)

    def scale(self, count: int) -> None:
        self.count = count
        self.gate.resize(count)

    def work(self, seconds: float) -> list[int]:
        """Work for so long; returns the widths, one after the other."""
        until, widths = self.now + seconds, []
        while self.now < until:
            widths.append(self.gate.width)
            self._step()
        return [width for width, _ in itertools.groupby(widths)]

    def _step(self) -> None:
        free = sorted(set(range(self.count)) - set(self._ends))
        if free and not self.gate.opens():
            if self.now >= self.comes:
                self.gate.begin(free[0], 1, self.now - self._open)
                self._ends[free[0]] = self.now + self.seconds(len(self._ends) + 1)
                self.comes += self.every
                return
            if self.comes < min(self._ends.values(), default=math.inf):
                self.now = self.comes
                return
        worker = min(self._ends, key=self._ends.__getitem__)
        self.now = self._open = self._ends.pop(worker)
        if trial := self.gate.end(worker):
            self.trials.append(trial)


def contend(at_work: int) -> float:
    """Of two that are at work each takes more than twice as long, and so on."""
    return 2 * MS * (1.2 * at_work - 0.2)


def test_one_at_a_time_works_if_they_are_in_each_others_way() -> None:
    workers = Workers(5, contend)
    assert workers.work(1.2) == [5, 2, 1]
    assert workers.gate.is_enough
    workers.work(TRIAL_SECONDS)
    assert workers.work(1) == [1]
    (trial,) = workers.trials
    assert (trial.chosen, trial.most) == (1, 5)
    assert trial.cost(1) == pytest.approx(2 * MS, rel=0.01)
    assert trial.cost(5) == pytest.approx(contend(5) / 5, rel=0.1)


def test_all_are_at_work_if_each_further_one_answers_more() -> None:
    workers = Workers(4, lambda at_work: 2 * MS)
    assert workers.work(TRIAL_SECONDS) == [4, 2, 4], "two are clearly slower: one is not tried"
    assert not workers.gate.is_enough


def test_some_may_be_better_than_one_and_all() -> None:
    workers = Workers(5, lambda at_work: {1: 2, 2: 2.2, 5: 12}.get(at_work, 7) * MS)
    workers.work(2 * TRIAL_SECONDS)
    assert workers.gate.width == 2


def test_fewer_must_be_worth_it() -> None:
    workers = Workers(4, lambda at_work: 2 * MS * at_work**1.02)
    assert workers.work(TRIAL_SECONDS)[:3] == [4, 2, 1]
    workers.work(TRIAL_SECONDS)
    assert workers.gate.width == 4
    assert workers.trials == [], "nothing has changed"


@pytest.mark.parametrize(
    "workers",
    [
        Workers(4, contend, share=0.1),
        Workers(4, lambda at_work: SHORT_CALL * 1.1),
        Workers(4, contend, every=10 * MS),
    ],
    ids=["they wait for others", "calls are long", "some are idle"],
)
def test_fewer_are_not_tried_where_they_would_not_help(workers: Workers) -> None:
    assert workers.work(3 * TRIAL_SECONDS) == [4]
    assert not workers.gate.is_enough


def test_fewer_are_tried_where_calls_compute_for_a_part_of_their_time() -> None:
    workers = Workers(2, contend, share=0.3)
    workers.work(2 * TRIAL_SECONDS)
    (trial,) = workers.trials
    assert trial.chosen == 1


def test_a_turn_has_some_batches_even_if_they_take_long() -> None:
    workers = Workers(2, lambda at_work: 0.09, share=0.4)
    ended = (UNCOUNTED_BATCHES + TURN_BATCHES) / 2 * 0.09
    assert workers.work(0.9 * ended) == [2]
    assert workers.work(0.2 * ended) == [2, 1]


def test_if_one_goes_during_a_trial_it_begins_anew() -> None:
    workers = Workers(4, contend)
    workers.work(1)
    assert workers.gate.width < 3
    workers.scale(3)
    assert workers.work(TRIAL_SECONDS)[:3] == [3, 1, 3]
    workers.scale(0)
    assert workers.gate.opens() == 0.0


def test_once_requests_become_few_nobody_is_held_back() -> None:
    workers = Workers(2, contend)
    workers.work(0.7)
    assert workers.gate.width == 1
    workers.now = workers.comes = workers.now + 60.0  # nobody asks
    workers.every = 10 * MS
    workers.work(1)
    assert workers.work(3) == [2]
    workers.every = 0.0
    workers.work(2 * TRIAL_SECONDS)
    (trial,) = workers.trials
    assert trial.chosen == 1
    assert trial.cost(1) == pytest.approx(2 * MS, rel=0.01)


def test_those_that_are_held_back_are_enough_also_once_they_are_gone() -> None:
    workers = Workers(3, contend)
    assert not workers.gate.is_enough
    workers.work(2 * TRIAL_SECONDS)
    for count in (3, 2, 1):
        workers.scale(count)
        assert workers.gate.width == 1
        assert workers.gate.is_enough
        assert workers.work(0.1) == [1]
    workers.work(AGAIN * TRIAL_SECONDS)
    assert not workers.gate.is_enough
    workers.scale(2)
    assert workers.work(1) == [2, 1]


def test_fewer_than_proved_best_are_tried_anew() -> None:
    workers = Workers(4, lambda at_work: 2 * MS if at_work <= 2 else 9 * MS)
    workers.work(2 * TRIAL_SECONDS)
    assert workers.gate.width == 2
    workers.scale(1)
    assert workers.gate.width == 1
    assert not workers.gate.is_enough


def test_the_choice_is_tried_again_and_less_often_while_it_stays() -> None:
    workers = Workers(2, contend)
    pauses = []
    for _ in range(3):
        while workers.gate.width == 2 or workers.gate._choice.trial.chosen is None:
            workers.work(0.01)
        began = workers.now
        while workers.gate.width == 1:
            workers.work(0.01)
        pauses.append(workers.now - began)
    assert pauses[1] == pytest.approx(2 * pauses[0], rel=0.1)
    assert pauses[2] == pytest.approx(2 * pauses[1], rel=0.1)
    assert len(workers.trials) == 1, "what is confirmed is not told"


def test_batches_of_another_kind_end_the_choice_at_once() -> None:
    workers = Workers(2, contend)
    workers.work(2 * TRIAL_SECONDS)
    assert workers.gate.width == 1
    workers.seconds = lambda at_work: SLOWER * 2 * MS * 1.01
    workers.work(SLOW_BATCHES * SLOWER * 2 * MS * 1.02)
    assert workers.gate.width == 2


def test_a_call_that_takes_long_lets_the_next_one_in() -> None:
    workers = Workers(3, contend)
    workers.work(2 * TRIAL_SECONDS)
    gate = workers.gate
    for worker in list(workers._ends):
        gate.end(worker)
    assert gate.opens() == 0.0
    gate.begin("a", 1, 0.0)
    workers.now += 0.04
    assert gate.opens() == pytest.approx(SLOW_SECONDS - 0.04)
    assert gate.is_enough
    workers.now += SLOW_SECONDS - 0.03
    assert gate.opens() == 0.0
    assert not gate.is_enough, "of three, one is slow"
    gate.begin("b", 1, 0.0)
    assert gate.opens() == pytest.approx(SLOW_SECONDS)
    gate.give_up("b")
    assert gate.opens() == 0.0
    gate.end("a")
    gate.begin("c", 1, 0.0)
    assert gate.opens() == pytest.approx(SLOW_SECONDS)
    assert gate.is_enough


def test_nobody_is_held_back_while_there_is_one_worker() -> None:
    """One that was scaled down may still end its batch."""
    gate = Gate()
    for worker in range(3):
        assert gate.opens() == 0.0
        gate.begin(worker, 1, 0.0)
    assert not gate.is_enough
