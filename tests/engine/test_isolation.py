"""`Isolation` with real tickets; what runs them is made here."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kserve_torch.engine.isolation import Isolation, Outcomes
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.window import Window
from kserve_torch.errors import (
    DeviceLost,
    HandlerError,
    InvalidInput,
    OutOfMemory,
    ServingError,
)
from kserve_torch.messages import Reply, Request, Verb
from kserve_torch.runtime.fault import RequestFault


class Emitted:
    """In the place of `Emissions`."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    @property
    def started(self) -> bool:
        return bool(self.rows)

    def __call__(self, row: Any) -> None:
        self.rows.append(row)


class Bench:
    """A lane, and a handler that fails on some ids; a request's id is its first letter's fault."""

    def __init__(self, names: str) -> None:
        self.lane = Lane("m", "1.0", Verb.PREDICT, Window(len(names), 0.0, len(names)))
        self.calls: list[str] = []
        self.streams = {name: Emitted() for name in names if name.isupper()}
        self.tickets = [
            self.lane.submit(Request(id=name, model="m", rows=[{}], parts=self.streams.get(name)))
            for name in names
        ]

    def run(self, requests: Sequence[Request]) -> list[Reply]:
        ids = "".join(request.id for request in requests)
        self.calls.append(ids)
        for request in requests:
            if request.parts is not None:
                request.parts(request.id)  # type: ignore[arg-type]
        for index, name in enumerate(ids.lower()):
            if name == "b":
                raise RequestFault(index, InvalidInput("unreadable"))
            if name == "e":
                raise HandlerError("boom")
            if name == "d":
                raise DeviceLost("no GPU")
            if name == "m" or (name == "l" and len(ids) > 2):
                raise OutOfMemory("no room")
        return [Reply(model="m", version="1", rows=[]) for _ in ids]

    def isolate(self, may_rerun: Callable[[], bool] = lambda: True) -> Iterator[Outcomes]:
        return Isolation(self.run, self.tickets, self.lane, may_rerun).outcomes()

    def outcomes(self, may_rerun: Callable[[], bool] = lambda: True) -> dict[str, str]:
        found = [pair for some in self.isolate(may_rerun) for pair in some]
        assert Counter(ticket for ticket, _ in found) == Counter(self.tickets)
        return {ticket.request.id: _word(outcome) for ticket, outcome in found}


def _word(outcome: Reply | ServingError) -> str:
    return "ok" if isinstance(outcome, Reply) else type(outcome).__name__


async def test_a_good_batch_is_one_call() -> None:
    bench = Bench("xyz")
    assert bench.outcomes() == {"x": "ok", "y": "ok", "z": "ok"}
    assert bench.calls == ["xyz"]


async def test_answers_do_not_wait_for_what_is_run_after_them() -> None:
    bench = Bench("xyze")
    parts = bench.isolate()
    assert [ticket.request.id for ticket, _ in next(parts)] == ["x", "y"]
    assert bench.calls == ["xyze", "xy"]
    assert [ticket.request.id for part in parts for ticket, _ in part] == ["z", "e"]


async def test_nothing_is_run_again_on_a_device_that_is_lost() -> None:
    bench = Bench("xyd")
    with pytest.raises(DeviceLost):
        bench.outcomes()
    assert bench.calls == ["xyd"]


async def test_a_lane_says_once_a_minute_that_its_batches_are_run_in_parts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench("xye")
    for _ in range(2):
        bench.outcomes()
    told = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "m 1.0 predict: a batch of 3 requests failed and is run again in parts "
        "(see batch_splits_total): boom"
    ]


@pytest.mark.parametrize(
    ("name", "level", "message"),
    [
        ("e", "ERROR", "m 1.0 predict: request e failed: boom"),
        ("b", "INFO", "m 1.0 predict: request b was refused: unreadable"),
    ],
)
async def test_bad_requests_are_logged_below_failures(
    name: str, level: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    Bench(name).outcomes()
    [record] = caplog.records
    assert (record.levelname, record.message) == (level, message)
    assert record.__dict__["fields"] == {"model": "m", "id": name}


@pytest.mark.parametrize("names", ["e", "xyb", "xyll"])
async def test_what_says_nothing_about_batches_is_not_told(
    names: str, caplog: pytest.LogCaptureFixture
) -> None:
    Bench(names).outcomes()
    assert "in parts" not in caplog.text


async def test_what_is_run_again_is_made_anew() -> None:
    lane = Lane("m", "1.0", Verb.PREDICT, Window(2, 0.0, 2))
    sent = [Request(id=name, model="m", rows=[[1]], again=lambda: [[1]]) for name in "xy"]
    seen: list[int] = []

    def run(requests: Sequence[Request]) -> list[Reply]:
        seen.extend(request.rows[0].pop() for request in requests)
        if len(requests) > 1:
            raise HandlerError("boom")
        return [Reply(model="m", version="1", rows=[])]

    tickets = [lane.submit(request) for request in sent]
    parts = Isolation(run, tickets, lane, lambda: True).outcomes()
    assert [len(outcomes) for outcomes in parts] == [1, 1]
    assert seen == [1, 1, 1, 1]


async def test_no_memory_to_make_rows_anew() -> None:
    def again() -> list[Any]:
        raise MemoryError

    bench = Bench("xe")
    bench.tickets[0].request = replace(bench.tickets[0].request, again=again)
    assert bench.outcomes() == {"x": "OutOfMemory", "e": "HandlerError"}


async def test_who_was_answered_meanwhile_is_not_run_again() -> None:
    bench = Bench("xyze")
    parts = bench.isolate()
    next(parts)
    bench.tickets[2].future.cancel()
    assert [ticket.request.id for part in parts for ticket, _ in part] == ["z", "e"]
    assert bench.calls == ["xyze", "xy", "e"]


async def test_no_part_is_run_again_when_time_is_up() -> None:
    bench = Bench("xyze")
    answers = {"x": "ok", "y": "ok", "z": "DeadlineExceeded", "e": "DeadlineExceeded"}
    assert bench.outcomes(lambda: len(bench.calls) < 2) == answers
    assert bench.calls == ["xyze", "xy"]


async def test_a_stream_is_not_run_twice_for_anothers_bad_row() -> None:
    bench = Bench("Sbx")
    assert bench.outcomes() == {"S": "HandlerError", "b": "InvalidInput", "x": "ok"}
    assert bench.calls == ["Sbx", "x", "b"]
    assert bench.streams["S"].rows == ["S"]


async def test_who_is_wrongly_accused_is_answered() -> None:
    bench = Bench("xyz")
    run = bench.run

    def accuse(requests: Sequence[Request]) -> list[Reply]:
        if "z" in (request.id for request in requests):
            raise RequestFault(0, InvalidInput("unreadable"))
        return run(requests)

    bench.run = accuse  # type: ignore[method-assign]
    assert bench.outcomes() == {"x": "ok", "y": "ok", "z": "InvalidInput"}


async def test_who_was_accused_gets_no_other_error_when_time_is_up() -> None:
    bench = Bench("xb")
    assert bench.outcomes(lambda: not bench.calls) == {"x": "DeadlineExceeded", "b": "InvalidInput"}


async def test_who_is_accused_in_the_middle_of_its_stream_gets_that_error() -> None:
    assert Bench("xB").outcomes() == {"x": "ok", "B": "InvalidInput"}


async def test_an_error_that_is_none_of_ours_fails_its_request_alone() -> None:
    class Odd(ServingError):
        def __init__(self) -> None:
            pass

    bench = Bench("xo")
    run = bench.run

    def odd(requests: Sequence[Request]) -> list[Reply]:
        if any(request.id == "o" for request in requests):
            raise Odd
        return run(requests)

    bench.run = odd  # type: ignore[method-assign]
    assert bench.outcomes() == {"x": "ok", "o": "HandlerError"}


async def test_who_has_sent_nothing_is_run_without_the_streams_that_failed() -> None:
    bench = Bench("SxE")
    assert bench.outcomes() == {"S": "HandlerError", "x": "ok", "E": "HandlerError"}
    assert bench.calls == ["SxE", "x"]


async def test_a_stream_that_is_broken_off_is_not_told_what_another_has_done() -> None:
    for names in ("SE", "Sb"):
        bench = Bench(names)
        texts = {t.request.id: str(e) for some in bench.isolate() for t, e in some}
        assert texts["S"] == "broken off: a request of its batch failed"
    (alone,) = [outcome for some in Bench("E").isolate() for _, outcome in some]
    assert "broken off" not in str(alone)


async def test_memory_that_halves_fit_into_makes_batches_smaller() -> None:
    bench = Bench("llll")
    assert set(bench.outcomes().values()) == {"ok"}
    assert bench.lane.max_rows == 2


async def test_a_request_that_fits_nowhere_makes_nothing_smaller() -> None:
    bench = Bench("xmyz")
    assert bench.outcomes() == {"x": "ok", "m": "OutOfMemory", "y": "ok", "z": "ok"}
    assert bench.lane.max_rows == 4


async def test_errors_do_not_hold_on_to_those_before_them() -> None:
    for names in ("eeee", "bbbb", "bebe"):
        errors = [outcome for some in Bench(names).isolate() for _, outcome in some]
        assert all(isinstance(error, ServingError) for error in errors)
        assert [error.__context__ for error in errors] == [None] * 4


async def test_a_large_batch_of_nothing_but_bad_rows() -> None:
    bench = Bench("b" * 2000)
    assert sum(len(some) for some in bench.isolate()) == 2000


async def test_parts_have_the_memory_of_the_batch_that_did_not_fit() -> None:
    """Frames of a failed call hold what it was computing."""
    bench = Bench("xxxx")
    batches: list[weakref.ref[set[int]]] = []

    def compute(requests: Sequence[Request]) -> list[Reply]:
        batch = set(map(id, requests))
        assert not any(earlier() for earlier in batches)
        batches.append(weakref.ref(batch))
        raise MemoryError

    def run(requests: Sequence[Request]) -> list[Reply]:
        if len(requests) > 1:
            try:
                compute(requests)
            except MemoryError as error:
                failure = OutOfMemory("no room")  # which refers to this frame, and this one to it
                raise failure from error
        return bench.run(requests)

    gc.disable()
    try:
        parts = Isolation(run, bench.tickets, bench.lane, lambda: True).outcomes()
        outcomes = [pair for some in parts for pair in some]
    finally:
        gc.enable()
    assert [_word(outcome) for _, outcome in outcomes] == ["ok"] * 4
    assert len(batches) == 3


async def test_a_failed_batch_is_no_garbage() -> None:
    """Its megabytes would stay in memory until Python looks for that."""
    errors: list[weakref.ref[HandlerError]] = []

    def run(requests: Sequence[Request]) -> list[Reply]:
        error = HandlerError("boom")
        errors.append(weakref.ref(error))
        raise error

    bench = Bench("x")
    gc.disable()
    try:
        parts = Isolation(run, bench.tickets, bench.lane, lambda: True).outcomes()
        assert [len(some) for some in parts] == [1]
        assert errors[0]() is None
    finally:
        gc.enable()
