from kserve_torch.engine.pauses import BACK_OFF, BackOff


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
