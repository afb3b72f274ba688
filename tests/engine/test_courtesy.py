"""Background workers: one at a time while the foreground is busy."""

import os
import threading
from types import SimpleNamespace

import pytest

from kserve_torch.engine import courtesy
from kserve_torch.engine.courtesy import NICE, Courtesy


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a test has."""
    monkeypatch.setattr(courtesy, "PATIENCE_SECONDS", 60.0)


class Worker:
    """A thread that has a turn until it is told to end it."""

    def __init__(self, shared: Courtesy) -> None:
        self.entered, self._leave = threading.Event(), threading.Event()
        self._shared = shared
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._shared.turn():
            self.entered.set()
            self._leave.wait(10)

    def leave(self) -> None:
        self._leave.set()
        self._thread.join(10)


def test_one_at_a_time_while_the_foreground_is_busy() -> None:
    shared = Courtesy(lambda: True)
    first = Worker(shared)
    assert first.entered.wait(10)
    second = Worker(shared)
    assert not second.entered.wait(0.05)
    first.leave()
    assert second.entered.wait(10)
    second.leave()


def test_all_at_once_while_it_is_not() -> None:
    shared = Courtesy(lambda: False)
    workers = [Worker(shared) for _ in range(3)]
    assert all(worker.entered.wait(10) for worker in workers)
    for worker in workers:
        worker.leave()


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy, "PATIENCE_SECONDS", 0.01)
    shared = Courtesy(lambda: True)
    workers = [Worker(shared) for _ in range(2)]
    assert all(worker.entered.wait(10) for worker in workers)
    for worker in workers:
        worker.leave()
    with shared.turn():  # each has given back what it held
        pass


def test_a_turn_that_fails_is_over() -> None:
    shared = Courtesy(lambda: True)
    with pytest.raises(ValueError, match="no"), shared.turn():
        raise ValueError("no")
    worker = Worker(shared)
    assert worker.entered.wait(10)
    worker.leave()


def test_a_turn_that_hangs_may_be_given_up() -> None:
    shared = Courtesy(lambda: True)
    hung = Worker(shared)
    assert hung.entered.wait(10)
    shared.give_up_turn()
    worker = Worker(shared)
    assert worker.entered.wait(10)
    worker.leave()
    hung.leave()


@pytest.mark.parametrize(
    ("limit", "used", "rest"),
    [(1.0, 0.03, 0.01), (1.5, 0.03, 0.0), (1.0, 5.0, 0.1), (1.0, 0.01, 0.0), (None, 0.04, None)],
)
def test_what_a_turn_used_beyond_the_limit_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, used: float, rest: float | None
) -> None:
    rests: list[float] = []
    # Of this module alone: other tests may have left threads that look at the time.
    time = SimpleNamespace(
        monotonic=iter((5.0, 5.02)).__next__,
        process_time=iter((7.0, 7.0 + used)).__next__,
        sleep=rests.append,
    )
    monkeypatch.setattr(courtesy, "time", time)
    with Courtesy(lambda: False, limit).turn():
        pass
    assert rests == ([] if rest is None else [pytest.approx(rest)])


@pytest.mark.parametrize("lower", [0, 5])
def test_only_the_calling_threads_priority_is_lowered(lower: int) -> None:
    seen: list[int] = []

    def lower_priority() -> None:
        thread = threading.get_native_id()
        if lower:  # as in a server that was started so
            os.setpriority(os.PRIO_PROCESS, thread, max(NICE + lower, before))
        Courtesy(lambda: True).lower_priority()
        seen.append(os.getpriority(os.PRIO_PROCESS, thread))

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=lower_priority)
    thread.start()
    thread.join()
    assert seen == [max(NICE + lower, before)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_who_may_not_change_priorities_works_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError("a sandbox says no")

    monkeypatch.setattr(os, "setpriority", refuse)
    Courtesy(lambda: True).lower_priority()
