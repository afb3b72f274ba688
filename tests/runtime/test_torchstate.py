import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from kserve_torch.runtime import torchstate
from kserve_torch.runtime.torchstate import DefaultDtype, DtypeLock


@pytest.mark.parametrize(
    ("threads", "cores", "workers", "counts"),
    [
        (4, 4, 1, (1, 4)),
        (4, 4, 2, (1, 2)),
        (4, 4, 0, (1, 4)),
        (4, 4, 3, (1,)),
        (1, 4, 1, (1,)),
        (64, 64, 1, (1, 4, 16, 64)),
        (64, 24, 2, (1, 3, 12)),
    ],
)
def test_thread_counts_stay_within_what_operators_may_have(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: int, workers: int, counts: tuple[int, ...]
) -> None:
    monkeypatch.setattr(torchstate, "THREADS", threads)
    monkeypatch.setattr(torchstate, "cores", lambda: cores)
    assert torchstate.thread_counts(workers) == counts


# --- default dtypes -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _installed() -> None:
    torchstate.install()


def chosen(dtype: torch.dtype, lock: DtypeLock) -> DefaultDtype:
    state = DefaultDtype(lock)
    with state.chosen():
        torch.set_default_dtype(dtype)
    return state


@contextmanager
def beside(*works: Callable[[], None]) -> Iterator[None]:
    """All run on threads of their own while the block runs."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join()
    assert not errors


def test_calls_have_their_own_default_dtype_at_the_same_moment() -> None:
    lock = DtypeLock(patience=60)

    def call_often(dtype: torch.dtype) -> Callable[[], None]:
        state = chosen(dtype, lock)

        def work() -> None:
            for _ in range(300):
                with state:
                    assert {torch.ones(1).dtype for _ in range(20)} == {dtype}

        return work

    dtypes = (torch.float32, torch.float64, torch.float16, torch.float32, torch.float64)
    with beside(*[call_often(dtype) for dtype in dtypes]):
        pass
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_calls_that_want_one_default_dtype_run_beside_each_other(dtype: torch.dtype) -> None:
    lock = DtypeLock(patience=60)
    met = threading.Barrier(3)

    def call(state: DefaultDtype) -> Callable[[], None]:
        def work() -> None:
            with state:
                met.wait(20)
                assert torch.get_default_dtype() is dtype

        return work

    with beside(*[call(chosen(dtype, lock)) for _ in range(3)]):
        pass


def test_a_call_does_not_wait_behind_all_that_come_later() -> None:
    lock = DtypeLock(patience=60)
    double, first, later = (chosen(d, lock) for d in (torch.float64, torch.float32, torch.float32))
    order: list[str] = []

    def call(name: str, state: DefaultDtype) -> Callable[[], None]:
        def work() -> None:
            with state:
                order.append(name)

        return work

    with first, beside(call("double", double)):
        until(lambda: len(lock._waiting) == 1)
        with beside(call("later", later)):
            until(lambda: len(lock._waiting) == 2)
            first.__exit__()
    assert order == ["double", "later"]


def until(condition: Callable[[], bool]) -> None:
    soon = threading.Event()
    while not condition():
        soon.wait(0.001)


def test_nothing_waits_for_ever_for_a_call_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    lock = DtypeLock(patience=0.05)
    double, hangs, other = (chosen(d, lock) for d in (torch.float64, torch.float32, torch.float64))
    caplog.set_level(logging.WARNING)
    hangs.__enter__()
    for _ in range(2):
        with double:  # the second time it waits no more
            assert torch.get_default_dtype() is torch.float64
        assert torch.get_default_dtype() is torch.float32
    with other:
        hangs.__exit__()
        assert torch.get_default_dtype() is torch.float64
    again = chosen(torch.float16, lock)
    with double, again:
        assert torch.get_default_dtype() is torch.float16
    assert torch.get_default_dtype() is torch.float32
    assert [record.getMessage() for record in caplog.records] == [
        "models with different default dtypes take turns: a call has waited 0.05 s for others that "
        "are still running, and now runs alongside them"
    ]


def test_who_initialises_beside_a_call_does_not_take_its_dtype_for_its_own() -> None:
    lock = DtypeLock(patience=0.05)
    double = chosen(torch.float64, lock)
    with double:
        plain = DefaultDtype(lock)
        with plain.chosen():
            assert torch.get_default_dtype() is torch.float32
    with plain:
        assert torch.get_default_dtype() is torch.float32


def test_who_initialises_waits_for_calls_with_another_dtype() -> None:
    """What is made then keeps its dtype."""
    lock = DtypeLock(patience=60)
    double, plain = chosen(torch.float64, lock), DefaultDtype(lock)
    made: list[torch.dtype] = []

    def initialize() -> None:
        with plain.chosen():
            made.append(torch.nn.Linear(1, 1).weight.dtype)

    double.__enter__()
    with beside(initialize):
        until(lambda: len(lock._waiting) == 1)
        double.__exit__()
    assert made == [torch.float32]


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_a_default_tensor_type_is_a_choice_too() -> None:
    lock = DtypeLock()
    double = DefaultDtype(lock)
    with double.chosen():
        torch.set_default_tensor_type(torch.DoubleTensor)
    assert torch.get_default_dtype() is torch.float32
    with double:
        assert torch.get_default_dtype() is torch.float64


# --- threads between operators --------------------------------------------------------------------


def test_each_instance_may_say_how_many_interop_threads_it_wants() -> None:
    count = torch.get_num_interop_threads()
    for _ in range(2):
        torch.set_num_interop_threads(count)
    with pytest.raises(RuntimeError):
        torch.set_num_interop_threads(0)
