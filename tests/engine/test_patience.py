"""`Patience`: for how long it pays to wait."""

import pytest

from kserve_torch.engine.patience import BUSY, FULL, IDLE, RECENT, TOGETHER, Patience


class Worker:
    """One that has a batch each second."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.now = 0.0

    def run(self, batches: int, seconds: float, full: bool = False) -> None:
        for _ in range(batches):
            self.patience.begin(self, self.now, full)
            self.patience.end(self, self.now + seconds)
            self.now += 1.0

    def share(self, workers: int = 1) -> float:
        return self.patience.share(self.now, workers)


def test_few_batches_tell_nothing() -> None:
    worker = Worker(Patience())
    assert worker.share() == 1.0
    worker.run(RECENT - 1, 0.1)
    assert worker.share() == 1.0
    worker.run(1, 0.1)
    assert worker.share() == 0.0


@pytest.mark.parametrize(
    ("used", "share"),
    [(0.0, 0.0), (IDLE - 0.01, 0.0), ((IDLE + BUSY) / 2, 0.5), (BUSY + 0.01, 1.0), (1.0, 1.0)],
)
def test_the_more_idle_workers_are_the_less_it_pays(used: float, share: float) -> None:
    worker = Worker(Patience())
    worker.run(RECENT, used)
    assert worker.share() == pytest.approx(share)


def test_only_the_last_batches_count() -> None:
    worker = Worker(Patience())
    worker.run(3 * RECENT, 1.0)
    worker.run(RECENT, 0.5)
    assert worker.share() == 0.0


def test_the_time_since_the_last_batch_counts() -> None:
    worker = Worker(Patience())
    worker.run(RECENT, 1.0)
    assert worker.share() == 1.0
    worker.now *= 2
    assert worker.share() == 0.0


def test_the_time_of_all_workers_counts() -> None:
    worker = Worker(Patience())
    worker.run(RECENT, 1.0)
    assert worker.share(workers=2) == 0.0


def test_it_pays_where_requests_come_in_groups_that_fill_batches() -> None:
    worker = Worker(Patience())
    worker.run(RECENT, 0.1)
    worker.run(int(FULL * RECENT), 0.1, full=True)
    assert worker.share() == 0.0
    worker.run(1, 0.1, full=True)
    assert worker.share() == 1.0
    worker.run(RECENT, 0.1)
    assert worker.share() == 0.0


def test_a_batch_that_does_not_end_does_not_count() -> None:
    worker = Worker(Patience())
    worker.run(RECENT - 1, 0.1)
    worker.patience.begin(worker, worker.now, full=False)
    worker.patience.forget(worker)
    worker.patience.end(worker, worker.now)
    assert worker.share() == 1.0


def test_a_clock_that_stands_still() -> None:
    patience = Patience()
    for _ in range(RECENT):
        patience.begin("w", 5.0, full=False)
        patience.end("w", 5.0)
    assert patience.share(5.0, 1) == 1.0


def test_the_longer_batches_take_the_longer_others_may_come() -> None:
    worker = Worker(Patience())
    assert worker.patience.pause == TOGETHER
    worker.run(3, 0.8)
    assert worker.patience.pause == pytest.approx(0.2)
