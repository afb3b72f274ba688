"""`Tuner` settles on the right candidate from what the batches cost."""

from collections.abc import Mapping

import pytest

from kserve_torch.tuner import FEW, TURN, TURNS, Tuner


def settle(tuner: Tuner, costs: Mapping[int, float], rows: int = 2) -> int:
    """Batches until it has settled."""
    for batch in range(1, 100):
        count = tuner.next(rows)
        if tuner.note(count, rows, seconds=rows * costs[count]):
            return batch
    raise AssertionError("it never settles")


def test_a_single_candidate_is_settled() -> None:
    tuner = Tuner([1])
    assert tuner.next(1) == 1
    assert not tuner.note(1, 1, 1.0)


@pytest.mark.parametrize(("slower", "chosen"), [(1.9, 2), (1.1, 1), (1.0, 1)])
def test_more_threads_must_be_worth_it(slower: float, chosen: int) -> None:
    tuner = Tuner([1, 2])
    settle(tuner, {1: slower, 2: 1.0})
    assert tuner.next(2) == chosen


def test_a_hopeless_candidate_is_given_up_early() -> None:
    assert settle(Tuner([1, 2]), {1: 1.0, 2: 5.0}) == 2 * FEW * TURN


def test_a_promising_one_gets_all_its_trials() -> None:
    assert settle(Tuner([1, 2]), {1: 2.0, 2: 1.0}) == 2 * TURNS * TURN


def test_the_first_batch_of_each_turn_does_not_count() -> None:
    tuner, batch = Tuner([1, 2]), 0
    while tuner.note(count := tuner.next(1), 1, 99.0 if batch % TURN == 0 else 3.0 / count) is None:
        batch += 1
    assert tuner.next(1) == 2


def test_each_size_of_batch_has_its_own_count() -> None:
    tuner = Tuner([1, 2])
    settle(tuner, {1: 1.0, 2: 1.0}, rows=1)
    settle(tuner, {1: 2.0, 2: 1.0}, rows=9)
    assert [tuner.next(rows) for rows in (1, 8, 15)] == [1, 2, 2]


def test_what_was_settled_says_its_cost() -> None:
    tuner = Tuner([1, 2])
    settled = None
    while settled is None:
        settled = tuner.note(tuner.next(4), 4, 2.0)
    assert (settled.chosen, settled.cost(1)) == (1, 0.5)


def test_candidates_take_turns_and_empty_batches_have_a_size_of_their_own() -> None:
    tuner = Tuner([1, 2])
    tuner.note(1, 0, 9.0)
    seen = []
    for _ in range(3 * TURN):
        seen.append(tuner.next(1))
        tuner.note(seen[-1], 1, 1.0)
    assert seen == [1] * TURN + [2] * TURN + [1] * TURN
