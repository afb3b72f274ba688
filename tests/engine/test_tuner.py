"""`Tuner` settles on the right candidate from what the batches cost."""

import itertools
from collections.abc import Mapping

import pytest

from kserve_torch.engine.trial import AGAIN, AGAIN_AT_MOST, SLOW_BATCHES, SLOWER, TURNS
from kserve_torch.engine.tuner import TURN, Tuner


def settle(tuner: Tuner, costs: Mapping[int, float], rows: int = 2) -> int:
    """Batches until it has settled."""
    for batch in range(1, 100):
        if tuner.note(rows, seconds=rows * costs[tuner.next(rows)]):
            return batch
    raise AssertionError("it never settles")


def rest(tuner: Tuner, seconds: float) -> int:
    """Batches of so many seconds until the next trial, of a tuner that has chosen 1 of 1 and 2."""
    for batch in range(100_000):
        if tuner.next(2) == 2:
            return batch
        assert tuner.note(2, seconds) is None
    raise AssertionError("it never tries again")


@pytest.mark.parametrize(("most", "half"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_beside_other_work_a_batch_has_half_of_the_threads(most: int, half: int) -> None:
    assert Tuner([1, most]).half == half


def test_a_single_candidate_is_settled() -> None:
    tuner = Tuner([1])
    assert tuner.next(1) == 1
    assert not tuner.note(1, 1.0)


@pytest.mark.parametrize(("slower", "chosen"), [(1.9e-3, 2), (1.04e-3, 1), (1.0e-3, 1)])
def test_more_threads_must_be_worth_it(slower: float, chosen: int) -> None:
    tuner = Tuner([1, 2])
    settle(tuner, {1: slower, 2: 1.0e-3})
    assert tuner.next(2) == chosen


def test_each_candidate_gets_all_its_turns() -> None:
    assert settle(Tuner([1, 2]), {1: 1.0e-3, 2: 5.0e-3}) == 2 * TURNS * TURN
    assert settle(Tuner([1, 2]), {1: 2.0e-3, 2: 1.0e-3}) == 2 * TURNS * TURN


def test_long_batches_are_tried_less_often() -> None:
    assert settle(Tuner([1, 2]), {1: 0.2, 2: 0.12}) == 3  # of which one is a slow one
    assert settle(Tuner([1, 2]), {1: 0.06, 2: 0.05}) == 12


def test_who_is_far_behind_with_long_batches_has_one_turn() -> None:
    for costs, chosen in (({1: 0.05, 2: 0.03}, 2), ({1: 0.03, 2: 0.05}, 1)):
        tuner = Tuner([1, 2])
        assert settle(tuner, costs) == 6
        assert tuner.next(2) == chosen


def tried(tuner: Tuner, costs: Mapping[int, float]) -> list[int]:
    """The thread counts of the batches until it has settled."""
    seen = []
    while len(seen) < 100:
        seen.append(tuner.next(2))
        if tuner.note(2, 2 * costs[seen[-1]]):
            return seen
    raise AssertionError("it never settles")


def test_where_fewer_threads_are_far_slower_the_fewest_are_not_tried() -> None:
    """A large model on 64 cores: with one thread a batch would take half a minute."""
    tuner = Tuner([1, 4, 16, 64])
    assert tried(tuner, {1: 15.0, 4: 4.0, 16: 1.0, 64: 0.4}) == [64, 64, 16]
    assert tuner.next(2) == 64


def test_the_best_of_many_may_be_in_the_middle() -> None:
    for costs in ({1: 0.9, 4: 0.3, 16: 0.5}, {1: 9e-4, 4: 3e-4, 16: 5e-4}):
        tuner = Tuner([1, 4, 16])
        settle(tuner, costs)
        assert tuner.next(2) == 4


def test_a_count_that_is_far_slower_is_not_tried_again_while_others_are() -> None:
    tuner = Tuner([1, 4, 16])
    assert tried(tuner, {1: 0.2, 4: 0.055, 16: 0.05}) == [16, 16, 4, 4, 1, 16, 16, 4, 4]
    assert tuner.next(2) == 16


def test_the_first_batch_of_each_turn_does_not_count() -> None:
    tuner, batch = Tuner([1, 2]), 0
    while tuner.note(1, 9e-3 if batch % TURN == 0 else 3e-3 / tuner.next(1)) is None:
        batch += 1
    assert tuner.next(1) == 2


def test_each_size_of_batch_has_its_own_count() -> None:
    tuner = Tuner([1, 2])
    settle(tuner, {1: 1.0e-3, 2: 1.0e-3}, rows=1)
    settle(tuner, {1: 2.0e-3, 2: 1.0e-3}, rows=9)
    assert [tuner.next(rows) for rows in (1, 8, 15)] == [1, 2, 2]


def test_what_was_settled_says_its_cost() -> None:
    tuner = Tuner([1, 2])
    settled = None
    while settled is None:
        settled = tuner.note(4, 2e-3)
    assert (settled.chosen, settled.cost(1)) == (1, 0.5e-3)


def test_candidates_take_turns_and_empty_batches_have_a_size_of_their_own() -> None:
    tuner = Tuner([1, 2])
    tuner.note(0, 9e-3)
    seen = []
    for _ in range(3 * TURN):
        seen.append(tuner.next(1))
        tuner.note(1, 1e-3)
    assert seen == [2] * TURN + [1] * TURN + [2] * TURN


def test_what_was_settled_is_tried_again_and_told_if_it_changed() -> None:
    tuner = Tuner([1, 2])
    trial = settle(tuner, {1: 1.0e-3, 2: 1.0e-3})
    assert rest(tuner, 2.0e-3) == pytest.approx(AGAIN * trial, abs=1)
    assert settle(tuner, {1: 2.0e-3, 2: 1.0e-3}) == 2 * TURNS * TURN
    assert tuner.next(2) == 2


@pytest.mark.parametrize("confirmed", [0, 4000])
def test_the_most_threads_are_tried_again_later_as_neighbours_make_them_slower(
    confirmed: int,
) -> None:
    tuner = Tuner([1, 2])
    before, costs = {1: 1.0e-3, 2: 2.0e-3}, {1: 2.0e-3, 2: 1.0e-3}
    for _ in range(confirmed):  # that one thread is better
        tuner.note(2, 2 * before[tuner.next(2)])
    while tuner.note(2, 2 * costs[tuner.next(2)]) is None:
        pass
    batches = 0
    while tuner.next(2) == 2:
        tuner.note(2, 2 * costs[2])
        batches += 1
    trial = sum(costs.values()) * TURNS * TURN
    assert batches - TURN == pytest.approx(2 * AGAIN * trial / costs[2], abs=1)


def test_a_large_model_does_not_keep_for_minutes_what_was_best_beside_a_neighbour() -> None:
    tuner = Tuner([1, 2])
    assert settle(tuner, {1: 0.17, 2: 0.3}) == 3
    batch = 2 * 0.17
    assert rest(tuner, batch) * batch < 10
    settle(tuner, {1: 0.17, 2: 0.1})
    assert tuner.next(2) == 2


def test_a_choice_that_has_become_much_slower_is_tried_again_at_once() -> None:
    """Another program took a core: threads that wait for each other wait for its time slices."""
    tuner = Tuner([1, 2])
    alone, disturbed = {1: 2.0e-3, 2: 1.0e-3}, {1: 4.0e-3, 2: 50.0e-3}
    settle(tuner, alone)
    for _ in range(3000):  # confirmed several times: the next trial is far away
        assert tuner.note(2, 2 * alone[tuner.next(2)]) is None
    assert tuner.next(2) == 2
    seen = tried(tuner, disturbed)
    assert seen[:SLOW_BATCHES] == [2] * SLOW_BATCHES
    assert seen.count(2) <= SLOW_BATCHES + 2 * TURN
    assert tuner.next(2) == 1


@pytest.mark.parametrize(("every", "slower"), [(1, 0.99 * SLOWER), (SLOW_BATCHES, 20)])
def test_a_few_slow_batches_or_some_that_are_little_slower_change_nothing(
    every: int, slower: float
) -> None:
    tuner = Tuner([1, 2])
    trial = settle(tuner, {1: 1.0e-3, 2: 2.0e-3})
    left = 0.99 * AGAIN * trial * 1.5
    for batch in itertools.count():
        cost = slower if batch % every == 0 else 1.0
        left -= cost
        if left < 0:
            break
        assert tuner.note(2, 2.0e-3 * cost) is None
        assert tuner.next(2) == 1
    assert batch > 2 * SLOW_BATCHES


def test_a_change_is_tried_again_soon_for_a_neighbour_may_have_caused_it() -> None:
    tuner = Tuner([1, 2])
    alone, disturbed = {1: 2.0e-3, 2: 1.0e-3}, {1: 2.0e-3, 2: 4.0e-3}
    settle(tuner, alone)
    for _ in range(4000):  # confirmed several times
        assert tuner.note(2, 2 * alone[tuner.next(2)]) is None
    changed = False
    while not changed:
        changed = tuner.note(2, 2 * disturbed[tuner.next(2)]) is not None
    assert tuner.next(2) == 1
    trial = sum(disturbed.values()) * TURNS * TURN
    assert rest(tuner, 2 * alone[1]) == pytest.approx(AGAIN * trial / alone[1], abs=1)
    assert settle(tuner, alone) == 2 * TURNS * TURN
    assert tuner.next(2) == 2


def test_what_stays_is_not_told_again_and_is_tried_less_often() -> None:
    tuner = Tuner([1, 2])
    costs = {1: 1.0e-3, 2: 2.0e-3}
    settle(tuner, costs)
    pauses = []
    while len(pauses) < 8:
        pauses.append(rest(tuner, 2 * costs[1]))
        for _ in range(2 * TURNS * TURN):
            assert tuner.note(2, 2 * costs[tuner.next(2)]) is None
    first = AGAIN * 1.5 * 2 * TURNS * TURN
    most = AGAIN_AT_MOST * 1.5 * 2 * TURNS * TURN
    assert pauses == pytest.approx([min(first * 2**n, most) for n in range(8)], abs=1)
