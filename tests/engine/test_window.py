"""`Window` as a machine: whatever is pushed, removed and taken, nothing is lost or doubled."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kserve_torch.engine.window import LATELY, Window


def test_nothing_waits() -> None:
    window: Window[str] = Window(4, 1.0, 10)
    assert window.due(0.0) is None
    assert window.oldest() is None
    assert window.take() == []


def test_batches_of_one_do_not_wait() -> None:
    window: Window[str] = Window(1, 5.0, 10)
    window.push("a", 1, now=0.0)
    assert window.due(0.0) == 0.0
    assert window.take() == ["a"]


def test_the_first_row_starts_the_delay() -> None:
    window: Window[str] = Window(4, 1.0, 10)
    window.push("a", 1, now=10.0)
    window.push("b", 1, now=10.9)
    assert window.due(10.25) == pytest.approx(0.75)
    assert window.due(11.5) == 0.0
    assert window.take() == ["a", "b"]
    assert window.due(11.5) is None


def test_the_delay_is_counted_from_when_the_worker_is_free() -> None:
    window: Window[str] = Window(4, 1.0, 10)
    window.push("a", 1, now=10.0)
    assert window.due(12.0, free_since=12.0) == 1.0
    assert window.due(12.0, free_since=9.0) == 0.0


@pytest.mark.parametrize(
    ("share", "delay", "due"),
    [
        (0.0, 1.0, 0.1),
        (0.5, 1.0, 0.5),
        (1.0, 1.0, 1.0),
        (0.0, 0.05, 0.05),
        (0.0, math.inf, 0.1),
        (0.5, math.inf, math.inf),
    ],
)
def test_where_it_does_not_pay_none_waits_as_long(share: float, delay: float, due: float) -> None:
    window: Window[str] = Window(4, delay, 10)
    window.share, window.pause = share, 0.1
    window.push("a", 1, now=0.0)
    assert window.due(0.0) == pytest.approx(due)


def test_those_that_come_right_after_each_other_are_kept_together() -> None:
    window: Window[str] = Window(9, 1.0, 10)
    window.share, window.pause = 0.0, 0.125
    for name, now in (("a", 0.0), ("b", 0.1), ("c", 0.2)):
        window.push(name, 1, now)
        assert window.due(now) == pytest.approx(0.125)
    assert window.due(0.5) == 0.0
    assert window.due(9.0, free_since=9.0) == 0.0


def test_a_full_batch_does_not_wait() -> None:
    window: Window[str] = Window(3, 9.0, 10)
    for name in "abcd":
        window.push(name, 1, now=0.0)
    assert window.due(0.0) == 0.0
    assert window.take() == ["a", "b", "c"]
    assert window.due(1.0) == 8.0


def test_nor_does_one_that_all_are_in_that_may_wait() -> None:
    window: Window[str] = Window(8, 9.0, 2)
    window.push("a", 1, now=0.0)
    assert window.due(0.0) == 9.0
    window.push("b", 1, now=0.0)
    assert window.due(0.0) == 0.0


def test_a_request_is_never_split_and_never_passed_over() -> None:
    window: Window[str] = Window(4, 0.0, 10)
    window.push("a", 3, now=0.0)
    window.push("big", 2, now=0.0)
    window.push("c", 1, now=0.0)
    assert window.take() == ["a"]
    assert window.take() == ["big", "c"]


def test_a_request_larger_than_a_batch_goes_alone() -> None:
    window: Window[str] = Window(4, 0.0, 10)
    window.push("huge", 9, now=0.0)
    window.push("b", 1, now=0.0)
    assert window.take() == ["huge"]
    assert window.take() == ["b"]


def test_who_left_shifts_nobody() -> None:
    window: Window[str] = Window(2, 5.0, 10)
    for name in "abc":
        window.push(name, 1, now=0.0)
    assert window.remove("b")
    assert not window.remove("b")
    assert window.take() == ["a", "c"]
    assert window.rows == 0


def test_the_delay_is_counted_from_who_is_still_there() -> None:
    window: Window[str] = Window(2, 5.0, 10)
    window.push("a", 1, now=0.0)
    window.push("b", 0, now=3.0)
    window.remove("a")
    assert window.due(4.0) == 4.0


def together(window: Window[str], *sizes: int) -> list[float | None]:
    """Crowds of so many requests: how long each is due to wait when all are there."""
    dues = []
    for size in sizes:
        for i in range(size):
            window.push(f"{i}", 1, now=0.0)
        dues.append(window.due(0.0))
        window.take()
    return dues


def test_who_never_has_company_is_not_kept_waiting() -> None:
    window: Window[str] = Window(4, 1.0, 10)
    assert together(window, *[1] * (LATELY + 2)) == [1.0] * LATELY + [0.0] * 2


def test_company_brings_the_patience_back() -> None:
    window: Window[str] = Window(4, 1.0, 10)
    together(window, *[1] * (LATELY + 1))
    window.push("a", 1, now=0.0)
    window.push("b", 1, now=0.0)
    assert window.due(0.0) == 1.0
    assert window.take() == ["a", "b"]
    assert together(window, 1) == [1.0]


def test_a_crowd_that_is_there_is_not_kept_waiting() -> None:
    window: Window[str] = Window(8, 1.0, 10)
    assert together(window, *[3] * (LATELY + 1)) == [1.0] * LATELY + [0.0]
    assert together(window, 2, 3, 4) == [1.0, 0.0, 1.0]
    assert together(window, *[3] * (LATELY + 1)) == [1.0] * LATELY + [0.0]


def test_the_largest_of_the_last_crowds_counts() -> None:
    window: Window[str] = Window(8, 1.0, 10)
    together(window, *[2] * (LATELY - 1), 5)
    assert together(window, 2, 4, 5, 6) == [1.0, 1.0, 0.0, 1.0]


def test_a_full_batch_and_one_that_leaves_some_behind_begin_anew() -> None:
    window: Window[str] = Window(8, 1.0, 10)
    together(window, *[3] * LATELY, 8)
    assert together(window, 3) == [1.0]
    together(window, *[3] * LATELY)
    for name, rows in (("a", 3), ("b", 6)):
        window.push(name, rows, now=0.0)
    assert [window.take(), window.take()] == [["a"], ["b"]]
    assert together(window, 3) == [1.0]


def test_what_is_known_of_the_clients_is_known_for_a_number_of_workers() -> None:
    window: Window[str] = Window(8, 1.0, 10)
    together(window, *[3] * LATELY)
    window.form_for(2)
    assert together(window, 3) == [1.0]
    window.form_for(1)
    assert together(window, 3) == [0.0]


def test_full_batches_of_one_request_say_nothing_about_company() -> None:
    window: Window[str] = Window(4, 1.0, 10)
    for _ in range(LATELY):
        window.push("full", 4, now=0.0)
        window.take()
    assert together(window, 1) == [1.0]


def test_capacity_counts_requests() -> None:
    window: Window[str] = Window(8, 0.0, 2)
    assert window.push("a", 5, now=0.0)
    assert window.push("b", 1, now=0.0)
    assert not window.push("c", 1, now=0.0)
    assert len(window) == 2


@given(rows=st.lists(st.integers(1, 9), max_size=40), max_rows=st.integers(1, 8))
def test_taking_all_gives_all_in_order_within_limits(rows: list[int], max_rows: int) -> None:
    window: Window[int] = Window(max_rows, 0.0, 100)
    for item, count in enumerate(rows):
        window.push(item, count, now=0.0)
    batches = []
    while batch := window.take():
        batches.append(batch)
    assert [item for batch in batches for item in batch] == list(range(len(rows)))
    assert all(len(batch) == 1 or sum(rows[i] for i in batch) <= max_rows for batch in batches)


class Machine(RuleBasedStateMachine):
    """Pushes, removals and takes in any order, against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.window: Window[int] = Window(4, 1.0, 6)
        self.model: list[tuple[int, int, float]] = []
        self.now = 0.0
        self.count = 0

    @rule(rows=st.integers(1, 6), later=st.floats(0, 2))
    def push(self, rows: int, later: float) -> None:
        self.now += later
        self.count += 1
        accepted = self.window.push(self.count, rows, self.now)
        assert accepted == (len(self.model) < 6)
        if accepted:
            self.model.append((self.count, rows, self.now))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.model))
        self.model.remove(entry)
        assert self.window.remove(entry[0])

    @rule()
    def take(self) -> None:
        batch = self.window.take()
        assert batch == [entry[0] for entry in self.model[: len(batch)]]
        assert bool(batch) == bool(self.model)
        self.model = self.model[len(batch) :]

    @rule(share=st.floats(0, 1), pause=st.floats(0, 2))
    def adapt(self, share: float, pause: float) -> None:
        self.window.share, self.window.pause = share, pause

    @invariant()
    def agrees(self) -> None:
        assert len(self.window) == len(self.model)
        assert self.window.rows == sum(rows for _, rows, _ in self.model)
        due = self.window.due(self.now)
        assert (due is None) == (not self.model)
        assert due is None or 0.0 <= due <= 1.0 + 1e-9


TestMachine = Machine.TestCase
