"""`Tuner` settles on the right candidate from what the batches cost."""

from collections.abc import Mapping

import pytest

from kserve_torch.tuner import FEW, TRIALS, Tuner


def settle(tuner: Tuner, costs: Mapping[int, float]) -> int:
    """Batches until it has settled."""
    for batch in range(1, 100):
        count = tuner.next()
        if tuner.note(count, rows=2, seconds=2 * costs[count]):
            return batch
    raise AssertionError("it never settles")


def test_a_single_candidate_is_settled() -> None:
    tuner = Tuner([1])
    assert tuner.chosen == tuner.next() == 1
    assert not tuner.note(1, 1, 1.0)


@pytest.mark.parametrize(("slower", "chosen"), [(1.9, 2), (1.1, 1), (1.0, 1)])
def test_more_threads_must_be_worth_it(slower: float, chosen: int) -> None:
    tuner = Tuner([1, 2])
    settle(tuner, {1: slower, 2: 1.0})
    assert tuner.chosen == tuner.next() == chosen


def test_a_hopeless_candidate_is_given_up_early() -> None:
    assert settle(Tuner([1, 2]), {1: 1.0, 2: 5.0}) == 2 * (FEW + 1)


def test_a_promising_one_gets_all_its_trials() -> None:
    assert settle(Tuner([1, 2]), {1: 2.0, 2: 1.0}) == 2 * (TRIALS + 1)


def test_the_first_batch_of_each_does_not_count() -> None:
    tuner = Tuner([1, 2])
    for count in (1, 2):
        tuner.note(count, 1, 100.0 if count == 2 else 1.0)
    settle(tuner, {1: 2.0, 2: 1.0})
    assert tuner.chosen == 2


def test_candidates_take_turns_and_empty_batches_say_nothing() -> None:
    tuner = Tuner([1, 2])
    tuner.note(1, 0, 9.0)
    seen = []
    for _ in range(4):
        seen.append(tuner.next())
        tuner.note(seen[-1], 1, 1.0)
    assert seen == [1, 2, 1, 2]
