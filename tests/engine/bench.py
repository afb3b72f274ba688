"""A pool with real threads; what its workers load is made here, and a row is what is to be done."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kserve_torch.engine.courtesy import Courtesy
from kserve_torch.engine.lane import Lane
from kserve_torch.engine.pool import Pool
from kserve_torch.engine.ticket import Ticket
from kserve_torch.engine.window import Window
from kserve_torch.engine.worker import WorkerState
from kserve_torch.errors import HandlerError
from kserve_torch.events import BatchRan
from kserve_torch.messages import Reply, Request, RowReply, Verb
from kserve_torch.settings import Limits

from ..waiting import until

_ids = itertools.count()


class Loaded:
    """In the place of an `Instance`: calls its rows."""

    def run(self, requests: Sequence[Request]) -> list[Reply]:
        return [
            Reply(model="m", version="1.0", rows=[RowReply(result=row()) for row in one.rows])
            for one in requests
        ]

    def close(self) -> None:
        pass


class Held:
    """A row, or a load, that does not end until it is let go."""

    ticket: Ticket

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.gate = threading.Event()

    def __call__(self, index: int = 0) -> Any:
        self.inside.set()
        assert self.gate.wait(10)
        return Loaded()

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.inside.wait, 10)


class Bench:
    """A pool, and a say in what its loads do."""

    def __init__(self, polite: Courtesy | None = None, **limits: Any) -> None:
        self.load: Callable[[int], Any] = lambda index: Loaded()
        self.ran: list[BatchRan] = []
        self.changes: list[tuple[int, WorkerState]] = []
        self.pool = Pool(
            Lane("m", "1.0", Verb.PREDICT, Window(1, 0.0, 100)),
            load=lambda index: self.load(index),
            ran=self.ran.append,
            changed=lambda worker: self.changes.append((worker.index, worker.state)),
            limits=Limits(**limits),
            courtesy=polite,
        )

    def submit(self, row: Callable[[], Any]) -> Ticket:
        return self.pool.lane.submit(Request(id=f"{next(_ids)}", model="m", rows=[row]))

    def hold(self) -> Held:
        """A request whose call goes on until it is let go."""
        held = Held()
        held.ticket = self.submit(held)
        return held

    async def result(self, row: Callable[[], Any]) -> Any:
        return (await asyncio.wait_for(self.submit(row).future, 10)).results[0]


def die() -> None:
    """A row that ends its worker."""
    raise SystemExit


async def lose_worker(bench: Bench) -> None:
    """Have a worker die, and wait until its replacement is due after a pause."""
    with pytest.raises(HandlerError, match="died"):
        await bench.result(die)
    await until(lambda: bench.pool.staffing._pauses)
