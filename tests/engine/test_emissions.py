"""What a handler sends before its answer, to clients that are slower than it is."""

import asyncio
import threading
import time
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from kserve_torch.engine import emissions
from kserve_torch.engine.emissions import Emissions
from kserve_torch.errors import RequestTimeout
from kserve_torch.messages import RowReply

PARTS = 50
#: Bytes; with what is counted for each part, three parts.
MOST_BYTES = 3 * 2000


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little may wait."""
    monkeypatch.setattr(emissions, "MOST_BYTES", MOST_BYTES)


def part(number: int) -> Mapping[int, RowReply]:
    return {0: RowReply(result=bytes([number]) * 1000)}


def send_all(parts: Emissions) -> None:
    """All parts, one after the other, as a handler sends them."""
    for number in range(PARTS):
        parts(part(number))


async def test_a_handler_waits_for_a_client_that_is_behind() -> None:
    sent: list[int] = []
    parts = Emissions()

    def handle() -> None:
        for number in range(PARTS):
            parts(part(number))
            sent.append(number)

    handling = asyncio.create_task(asyncio.to_thread(handle))
    parts.until(handling)
    taken = []
    async for rows in parts:
        taken.append(rows[0].result[0])
        assert len(sent) <= len(taken) + 4
        await asyncio.sleep(0.001)
    assert taken == list(range(PARTS))
    await handling


async def test_a_client_that_does_not_catch_up_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emissions, "PATIENCE_SECONDS", 0.1)
    parts = Emissions()
    answering = asyncio.get_running_loop().create_future()
    parts.until(answering)
    await asyncio.to_thread(send_all, parts)
    with pytest.raises(RequestTimeout, match="did not take"):
        await anext(parts)
    assert answering.cancelled()
    assert await anext(parts, None) is None  # what followed was dropped


async def test_a_client_that_stays_behind_is_given_up_though_it_takes_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emissions, "PATIENCE_SECONDS", 0.1)
    parts = Emissions()

    async def take() -> None:
        async for _ in parts:
            await asyncio.sleep(0.02)

    parts.until(asyncio.create_task(asyncio.to_thread(send_all, parts)))
    with pytest.raises(RequestTimeout, match="did not take"):
        await take()


async def test_a_client_that_is_not_behind_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emissions, "PATIENCE_SECONDS", 0.0)
    parts = Emissions()
    for number in range(2):
        parts(part(number))
    assert [await anext(parts) for _ in range(2)] == [part(0), part(1)]


@pytest.mark.parametrize(("most", "patience"), [(MOST_BYTES, 60.0), (10 * MOST_BYTES * PARTS, 0.0)])
async def test_an_event_loop_does_not_wait_for_a_client(
    most: int, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emissions, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(emissions, "MOST_UNAWAITED_BYTES", most)
    parts = Emissions()

    async def handle() -> None:
        send_all(parts)

    began = time.monotonic()
    await asyncio.to_thread(asyncio.run, handle())
    assert time.monotonic() - began < 30
    with pytest.raises(RequestTimeout, match="did not take"):
        await anext(parts)


async def test_an_event_loop_may_get_ahead_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Emissions()

    async def handle() -> None:
        for number in range(10):
            parts(part(number))

    await asyncio.to_thread(asyncio.run, handle())
    parts.end()
    assert [rows[0].result[0] async for rows in parts] == list(range(10))


async def test_a_client_that_has_caught_up_has_as_long_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Emissions()

    def fill(patience: float) -> None:
        monkeypatch.setattr(emissions, "PATIENCE_SECONDS", patience)
        for number in range(3):
            parts(part(number))

    await asyncio.to_thread(fill, 0.0)
    for _ in range(3):
        await anext(parts)
    await asyncio.to_thread(fill, 10.0)
    waits = asyncio.create_task(asyncio.to_thread(parts, part(3)))
    assert await asyncio.wait([waits], timeout=0.01) == (set(), {waits})
    await anext(parts)
    await waits


async def test_clients_of_one_batch_have_the_same_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emissions, "PATIENCE_SECONDS", 0.2)
    clients = [Emissions() for _ in range(20)]

    def handle() -> None:
        for number in range(PARTS):
            for parts in clients:
                parts(part(number))

    began = time.monotonic()
    await asyncio.to_thread(handle)
    assert time.monotonic() - began < len(clients) * 0.2 / 2


async def test_a_handler_does_not_wait_for_a_client_that_has_gone() -> None:
    parts = Emissions()
    behind = threading.Event()

    def handle() -> None:
        for number in range(PARTS):
            if number == 3:
                behind.set()
            parts(part(number))

    handling = asyncio.create_task(asyncio.to_thread(handle))
    await asyncio.to_thread(behind.wait)
    parts.end()
    async with asyncio.timeout(emissions.PATIENCE_SECONDS / 2):
        await handling


async def test_other_work_has_its_turn_while_parts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emissions, "TURN", 2)
    parts, turns = Emissions(), []
    for number in range(3):
        parts(part(number))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(turns.append, "other work")
    assert await anext(parts) == part(0)
    assert not turns
    assert await anext(parts) == part(1)
    assert turns


async def test_a_sparse_tensor_is_a_part_too() -> None:
    parts, row = Emissions(), RowReply(result=torch.eye(3).to_sparse())
    parts({0: row})
    sent = await anext(parts)
    assert sent is not None
    assert sent[0] is row


@pytest.mark.parametrize("result", [np.zeros(1000), torch.zeros(2000), "x" * 8000])
async def test_what_a_part_takes_is_counted(
    result: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emissions, "PATIENCE_SECONDS", 0.0)
    parts = Emissions()
    for _ in range(2):
        parts({0: RowReply(result=result)})
    with pytest.raises(RequestTimeout):
        await anext(parts)
