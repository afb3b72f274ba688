import threading

from kserve_torch.engine.backoff import BACK_OFF, BackOff, Pauses


def test_pauses_grow_until_the_limit() -> None:
    back_off = BackOff(limit=100.0)
    assert [back_off.next(now=float(now)) for now in range(12)] == [*BACK_OFF, BACK_OFF[-1]]
    assert back_off.next(now=100.0) == BACK_OFF[-1]
    assert back_off.next(now=100.1) is None


def test_what_works_again_begins_anew() -> None:
    back_off = BackOff(limit=100.0)
    assert [back_off.next(now=0.0), back_off.next(now=1.0)] == [0, 1]
    back_off.reset()
    assert [back_off.next(now=500.0), back_off.next(now=501.0)] == [0, 1]


def test_only_starts_that_fail_count_towards_the_limit() -> None:
    """What starts and then hangs, or dies, once in ten minutes can be started."""
    back_off = BackOff(limit=100.0)
    assert [back_off.next(now=0.0), back_off.next(now=90.0)] == [0, 1]
    back_off.started()
    assert [back_off.next(now=600.0), back_off.next(now=700.0)] == [1, 2]
    assert back_off.next(now=700.1) is None


def test_the_pauses_are_torchserves() -> None:
    assert BACK_OFF == (0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55)


def test_cancelled_pauses_have_no_effect() -> None:
    over: list[str] = []
    pauses = Pauses(over=lambda: over.append(threading.current_thread().name))
    pauses.begin(0)
    pauses.begin(1)
    assert len(pauses) == 2
    first, pending = pauses._timers
    assert pending.daemon  # else the process would not end before it
    first.join(10)
    pauses.cancel()
    assert len(pauses) == 0
    pending.join(10)
    assert not pending.is_alive()
    assert over == [first.name]
