"""What the calls of a worker get of the cores."""

import pytest

from kserve_torch.engine import threads
from kserve_torch.engine.threads import CallThreads
from kserve_torch.runtime.torchstate import note_trial


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that are set, where workers share twelve cores."""
    used: list[int] = []
    monkeypatch.setattr(threads, "use_threads", used.append)
    monkeypatch.setattr(threads, "thread_counts", lambda workers: (12 // workers,))
    # Another test may have compiled a model on this thread.
    monkeypatch.setattr(threads, "compiles", lambda: False)
    return used


def test_those_at_work_share_the_cores(used: list[int]) -> None:
    at_work = iter([1, 2, 2, 3])
    calls = CallThreads("m 1.0 predict", 3, lambda: next(at_work), crowded=lambda: False)
    calls.for_load()
    for _ in range(4):
        calls.for_call(1)
    assert used == [4, 12, 6, 6, 4]


def test_each_number_at_work_has_its_own_trial(
    used: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(threads, "thread_counts", lambda workers: (1, 12 // workers))
    workers = 1
    calls = CallThreads("m 1.0 predict", 1, lambda: workers, crowded=lambda: False)
    while not caplog.messages:
        calls.for_call(1)
        calls.answered(1, 1.0 / used[-1])
    assert "using 12 intra-op threads" in caplog.text
    workers = 2
    calls.for_call(1)
    assert used[-1] == 6
    workers = 1
    for _ in range(2):
        calls.for_call(1)
        calls.answered(1, 1.0 / used[-1])
        assert used[-1] == 12


def test_a_call_that_compiles_has_all_there_are_to_be_and_is_no_part_of_a_trial(
    used: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "compiles", lambda: True)
    calls = CallThreads("m 1.0 predict", 3, lambda: 1, crowded=lambda: False)
    calls.for_call(1)
    assert used == [4]
    assert calls._tuner is None


def test_a_call_in_which_the_handler_tries_something_out_is_no_part_of_a_trial(
    used: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(threads, "thread_counts", lambda workers: (1, 12))
    calls = CallThreads("m 1.0 predict", 1, lambda: 1, crowded=lambda: False)
    for _ in range(2):
        calls.for_call(8)
        note_trial()
        calls.answered(8, 100.0)
    while not caplog.messages:
        calls.for_call(8)
        calls.answered(8, 1.0 / used[-1])
    assert "using 12 intra-op threads" in caplog.text


def test_a_call_in_a_crowd_gets_half_and_is_no_part_of_a_trial(used: list[int]) -> None:
    crowded = True
    calls = CallThreads("m 1.0 predict", 1, lambda: 1, crowded=lambda: crowded)
    calls.for_call(1)
    calls.answered(1, 100.0)
    assert used == [6]
    assert calls._tuner is None
    crowded = False
    calls.for_call(1)
    assert used == [6, 12]
