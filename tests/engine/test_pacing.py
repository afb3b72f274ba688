"""Refusals: at once, until there are too many."""

import pytest

from kserve_torch.engine.pacing import BURST, MOST_SECONDS, RATE, Pacing


def test_a_burst_is_refused_at_once_and_what_follows_at_a_steady_rate() -> None:
    pacing = Pacing()
    waits = [pacing.wait(100.0) for _ in range(BURST + 5)]
    assert waits == pytest.approx([0.0] * (BURST + 1) + [n / RATE for n in range(1, 5)], abs=1e-6)


def test_nobody_is_held_back_for_longer_than_the_most() -> None:
    pacing = Pacing()
    waits = [pacing.wait(100.0) for _ in range(BURST + int(3 * MOST_SECONDS * RATE))]
    assert waits[-1] == max(waits) == MOST_SECONDS


@pytest.mark.parametrize("rate", [RATE / 2, RATE * 0.99])
def test_below_the_rate_nobody_is_held_back(rate: float) -> None:
    pacing = Pacing()
    assert {pacing.wait(100.0 + n / rate) for n in range(5 * BURST)} == {0.0}


def test_a_pause_allows_the_next_burst() -> None:
    pacing = Pacing()
    for _ in range(3 * BURST):
        pacing.wait(100.0)
    later = 100.0 + MOST_SECONDS + 2 * BURST / RATE
    assert {pacing.wait(later) for _ in range(BURST)} == {0.0}
