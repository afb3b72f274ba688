"""`Lane` between a real event loop and real threads."""

import asyncio
import math
import threading
import time
from collections.abc import Sequence

import pytest

from kserve_torch.engine import gate as gates
from kserve_torch.engine import lane as lanes
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.patience import RECENT
from kserve_torch.engine.ticket import Ticket, deliver
from kserve_torch.engine.window import Window
from kserve_torch.errors import HandlerError, NotReady, Overloaded
from kserve_torch.messages import Reply, Request, RowReply, Timing, Verb

from ..waiting import until


def lane(rows: int = 4, delay: float = 0.0, capacity: int = 10) -> Lane:
    return Lane("m", "1.0", Verb.PREDICT, Window(rows, delay, capacity))


def request(name: str, rows: int = 1, verb: Verb = Verb.PREDICT) -> Request:
    return Request(id=name, model="m", rows=[name] * rows, verb=verb)


def echo(tickets: Sequence[Ticket]) -> None:
    deliver(
        (ticket, Reply(model="m", version="1.0", rows=[RowReply(result=ticket.request.id)]))
        for ticket in tickets
    )


class Taker:
    """A thread that takes batches, answers them and keeps what it saw."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.seen: list[list[str]] = []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.main)
        self.thread.start()

    def main(self) -> None:
        while batch := self.lane.take(self.stopping):
            self.seen.append([ticket.request.id for ticket in batch])
            echo(batch)

    def stop(self) -> None:
        self.stopping.set()
        self.lane.rouse()
        self.thread.join()


async def test_every_request_gets_its_own_answer() -> None:
    queue = lane(rows=3)
    taker = Taker(queue)
    tickets = [queue.submit(request(str(i))) for i in range(7)]
    answers = await asyncio.gather(*(ticket.future for ticket in tickets))
    taker.stop()
    assert [reply.rows[0].result for reply in answers] == [str(i) for i in range(7)]
    assert sum(len(batch) for batch in taker.seen) == 7
    assert all(len(batch) <= 3 for batch in taker.seen)


async def test_a_full_queue_refuses_at_once() -> None:
    queue = lane(capacity=1)
    queue.submit(request("a"))
    with pytest.raises(Overloaded, match="1 requests wait"):
        queue.submit(request("b"))


async def test_a_closed_lane_refuses_and_gives_back_what_waits() -> None:
    queue = lane()
    ticket = queue.submit(request("a"))
    assert queue.close() == [ticket]
    assert queue.take(threading.Event()) == []
    with pytest.raises(NotReady):
        queue.submit(request("b"))


async def test_closing_a_lane_ends_the_wait_of_its_workers() -> None:
    queue = lane()
    taker = Taker(queue)
    await queue.submit(request("a")).future
    queue.close()
    taker.thread.join(10)
    ended = not taker.thread.is_alive()
    taker.stop()
    assert ended


async def test_withdrawn_requests_are_in_no_batch() -> None:
    queue = lane(rows=2)
    a, b, c = (queue.submit(request(name)) for name in "abc")
    assert queue.withdraw(b)
    assert queue.take(threading.Event()) == [a, c]
    assert not queue.withdraw(a)


async def test_an_idle_worker_waits_for_a_full_batch() -> None:
    queue = lane(rows=2, delay=60.0)
    taker = Taker(queue)
    first = queue.submit(request("a"))
    second = queue.submit(request("b"))
    await asyncio.gather(first.future, second.future)
    taker.stop()
    assert taker.seen == [["a", "b"]]


async def test_an_idle_worker_gives_up_waiting_after_the_delay() -> None:
    queue = lane(rows=2, delay=0.01)
    taker = Taker(queue)
    await queue.submit(request("a")).future
    taker.stop()
    assert taker.seen == [["a"]]


async def test_a_delay_without_end_waits_for_a_full_batch() -> None:
    queue = lane(rows=2, delay=math.inf)
    taker = Taker(queue)
    first = queue.submit(request("a"))
    await asyncio.to_thread(taker.thread.join, 0.05)  # it would have ended by now
    assert taker.thread.is_alive()
    second = queue.submit(request("b"))
    await asyncio.wait_for(asyncio.gather(first.future, second.future), 10)
    taker.stop()
    assert taker.seen == [["a", "b"]]


async def test_a_description_goes_alone() -> None:
    queue = lane(rows=3)
    for name, verb in (("a", Verb.PREDICT), ("d", Verb.DESCRIBE), ("b", Verb.PREDICT)):
        queue.submit(request(name, verb=verb))
    stop = threading.Event()
    taken = [[ticket.request.id for ticket in queue.take(stop)] for _ in range(3)]
    assert taken == [["a"], ["d"], ["b"]]


async def test_a_worker_without_work_goes_home() -> None:
    queue = lane()
    assert queue.take(threading.Event(), idle_limit=lambda: 0.01) == []
    assert queue._idle == []


async def test_who_has_been_idle_for_the_shortest_time_is_woken() -> None:
    """So the others are idle for long, and those that are not needed may stop."""
    queue = lane()
    takers = []
    for count in (1, 2, 3):
        takers.append(Taker(queue))
        await until(lambda count=count: len(queue._idle) == count)  # type: ignore[misc]
    for name in "abc":
        await queue.submit(request(name)).future
        await until(lambda: len(queue._idle) == 3)
    for taker in takers:
        taker.stop()
    assert [taker.seen for taker in takers] == [[], [], [["a"], ["b"], ["c"]]]


async def test_answers_to_futures_that_are_done_are_dropped() -> None:
    queue = lane()
    gone, kept = queue.submit(request("gone")), queue.submit(request("kept"))
    gone.future.cancel()
    echo([gone, kept])
    assert (await kept.future).rows[0].result == "kept"
    assert gone.future.cancelled()


async def test_errors_reach_the_caller() -> None:
    queue = lane()
    ticket = queue.submit(request("a"))
    told: list[str] = []
    deliver([(ticket, HandlerError("boom"))], after=lambda: told.append("after"))
    with pytest.raises(HandlerError, match="boom"):
        await ticket.future
    assert told == []
    await asyncio.sleep(0)
    assert told == ["after"]


async def test_a_smaller_ceiling_is_remembered() -> None:
    queue = lane(rows=4)
    queue.limit_rows(2)
    queue.limit_rows(3)
    assert queue.max_rows == 2
    queue.limit_rows(0)
    assert queue.max_rows == 1


async def test_batches_grow_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = lane(rows=4)
    queue.limit_rows(1)
    sizes = []
    for seconds in (600.0, 0.0, 0.0, 0.0):
        monkeypatch.setattr(lanes, "SHRUNK_SECONDS", seconds)
        queue.submit(request("a"))
        assert await asyncio.to_thread(queue.take, threading.Event())
        sizes.append(queue.max_rows)
    assert sizes == [1, 2, 4, 4]


async def test_a_new_batch_size_ends_the_limit() -> None:
    queue = lane(rows=4, delay=60.0)
    queue.limit_rows(1)
    queue.form_batches(3, 0.0)
    assert queue.max_rows == 3
    queue.submit(request("a"))
    assert await asyncio.to_thread(queue.take, threading.Event())


async def test_whoever_leaves_some_behind_wakes_another() -> None:
    queue, stopping = lane(rows=4, delay=0.2), threading.Event()
    taking = [asyncio.create_task(asyncio.to_thread(queue.take, stopping)) for _ in "12"]
    await until(lambda: len(queue._idle) == 2)
    for name in "abc":
        queue.submit(request(name))
    queue.limit_rows(2)
    await asyncio.wait(taking, timeout=10)
    stopping.set()
    queue.rouse()
    assert sorted(map(len, await asyncio.gather(*taking))) == [1, 2]


# --- times ---


async def test_the_queue_tells_how_long_its_oldest_request_has_waited() -> None:
    queue = lane()
    assert (queue.waiting, queue.oldest_age()) == (0, 0.0)
    first = queue.submit(request("a"))
    assert first.pressure == 0.0
    second = queue.submit(request("b"))
    assert second.pressure == second.arrived - first.arrived > 0.0
    assert queue.waiting == 2
    assert second.pressure <= queue.oldest_age() < 60.0


class Clock:
    """The time in `lanes`, which a test may put forward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        monkeypatch.setattr(lanes, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def spend(self, queue: Lane, sizes: Sequence[int], at_work: float) -> None:
        """One worker gets a batch each second, and computes so much of it."""
        worker = threading.Event()
        for size in sizes:
            for _ in range(size):
                queue.submit(request("early"))
            assert len(queue.take(worker)) == size
            self.ahead += at_work
            worker.set()
            assert queue.take(worker) == []
            worker.clear()
            self.ahead += 1.0 - at_work


@pytest.mark.parametrize(("at_work", "batch"), [(0.1, ["a"]), (1.0, ["a", "b", "c"])])
async def test_only_workers_that_are_short_of_time_wait_for_more_rows(
    monkeypatch: pytest.MonkeyPatch, at_work: float, batch: list[str]
) -> None:
    queue = lane(rows=3)
    Clock(monkeypatch).spend(queue, [1, 2] * RECENT, at_work)
    queue.form_batches(3, delay=60.0)
    taker = Taker(queue)
    tickets = [queue.submit(request(name)) for name in batch]
    await asyncio.wait_for(asyncio.gather(*(ticket.future for ticket in tickets)), 10)
    taker.stop()
    assert taker.seen == [batch]


@pytest.mark.parametrize(
    ("sizes", "workers", "share"),
    [
        ([1] * RECENT, 1, 1.0),
        ([1] * RECENT, 2, 0.0),
        ([3] * RECENT, 2, 1.0),  # they are full
        ([1] * (RECENT - 1), 2, 1.0),  # one that is given up is missing
    ],
)
async def test_the_wait_is_adapted_to_what_workers_do(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], workers: int, share: float
) -> None:
    window: Window[Ticket] = Window(3, 0.0, 10)
    queue = Lane("m", "1.0", Verb.PREDICT, window)
    queue.resize(workers)
    queue.submit(request("lost"))
    lost = threading.Event()
    assert queue.take(lost)
    queue.give_up(lost)
    lost.set()
    assert queue.take(lost) == []
    Clock(monkeypatch).spend(queue, sizes, at_work=0.95)
    assert window.share == share
    assert window.pause == pytest.approx(0.95 / 4, rel=0.01)


async def test_the_wait_for_more_rows_is_no_pressure() -> None:
    queue = lane(rows=2, delay=60.0)
    assert queue.pressure() == 0.0
    queue.submit(request("a"))
    assert queue.pressure() == 0.0
    queue.submit(request("b"))
    assert 0.0 < queue.pressure() < 60.0


async def test_time_is_queued_until_the_handler_has_the_request() -> None:
    ticket = Ticket(request("a"), asyncio.get_running_loop(), arrived=10.0)
    assert ticket.timing(12.0) == Timing(queued=2.0, handler=0.0, batch_rows=0, began=0.0)
    ticket.began, ticket.rows = 11.5, 3
    assert ticket.timing(12.0) == Timing(queued=1.5, handler=0.5, batch_rows=3, began=11.5)


class Busy:
    """Two workers of which one is to be at work; one has the first request."""

    def __init__(self, rows: int = 4) -> None:
        self.queue = lane(rows)
        self.queue.resize(2)
        self.queue._gate.width = 1
        self.worker = threading.Event()
        self.ticket = self.queue.submit(request("a"))
        assert self.queue.take(self.worker) == [self.ticket]


async def test_a_worker_that_is_held_back_leaves_the_next_batch_to_the_one_at_work() -> None:
    busy = Busy()
    other = Taker(busy.queue)
    tickets = [busy.queue.submit(request(name)) for name in "bc"]
    assert busy.queue.take(busy.worker) == tickets
    busy.queue.close()
    other.stop()
    assert other.seen == []


async def test_a_worker_that_is_held_back_takes_over_from_one_whose_call_takes_long() -> None:
    busy = Busy()
    other = Taker(busy.queue)
    await asyncio.wait_for(busy.queue.submit(request("b")).future, 10)
    assert other.seen == [["b"]]
    other.stop()


@pytest.mark.parametrize("rows", [1, 4])
async def test_a_worker_that_is_held_back_takes_over_from_one_that_is_given_up(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(gates, "SLOW_SECONDS", math.inf)
    busy = Busy(rows)
    other = Taker(busy.queue)
    tickets = [busy.queue.submit(request(name)) for name in "bc"]
    busy.queue.give_up(busy.worker)
    busy.queue.rouse()
    await asyncio.wait_for(asyncio.gather(*(ticket.future for ticket in tickets)), 10)
    other.stop()


async def test_a_worker_that_is_held_back_for_long_goes_home() -> None:
    busy = Busy()
    busy.queue.submit(request("b"))
    assert busy.queue.take(threading.Event(), lambda: 0.01) == []


async def test_there_is_no_pressure_while_workers_are_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "SLOW_SECONDS", math.inf)
    busy = Busy()
    busy.queue.submit(request("b"))
    await until(lambda: busy.queue.oldest_age() > 0)
    assert busy.queue.pressure() == 0
    monkeypatch.setattr(gates, "SLOW_SECONDS", 0)
    assert busy.queue.pressure() > 0
