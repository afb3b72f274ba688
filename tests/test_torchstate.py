import pytest

from kserve_torch import torchstate


@pytest.mark.parametrize(
    ("threads", "cores", "workers", "counts"),
    [(4, 4, 1, (1, 4)), (4, 4, 2, (1, 2)), (4, 4, 0, (1, 4)), (4, 4, 3, (1,)), (1, 4, 1, (1,))],
)
def test_thread_counts_stay_within_what_operators_may_have(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, workers: int, counts: tuple[int, ...]
) -> None:
    monkeypatch.setattr(torchstate, "THREADS", threads)
    monkeypatch.setattr(torchstate, "cores", lambda: cores)
    assert torchstate.thread_counts(workers) == counts
