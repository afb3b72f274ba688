"""Minutes of mixed traffic (SOAK_MINUTES or 3): every answer is its request's, nothing grows.

Meanwhile models are loaded, unloaded and switched, clients leave, deadlines pass, input is bad.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import psutil

from ..faults.actor import (
    GRPC,
    NATIVE,
    PROTOCOLS,
    V1,
    Answer,
    Client,
    add_actor,
    store_of,
    talking_to,
    until,
)
from .minutes import MARKS, MINUTES

pytestmark = MARKS

BUSY = (503, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
LATE = (504, grpc.StatusCode.DEADLINE_EXCEEDED)
BAD = (b"{", b'{"instances": 1}', b"\xff", b'{"inputs": []}', b"[" * 5000)
#: Growth of memory after the first third, in bytes, that allocators are allowed.
MEMORY = 40 << 20


class Soak:
    """Clients that each do one kind of thing until the time is over."""

    def __init__(self, client: Client, store: Path) -> None:
        self.client = client
        self.store = store
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._numbers = itertools.count()

    def run(self, seconds: float) -> None:
        """Run all of them side by side for so long."""
        roles = [*[self.ask] * 6, self.leave, self.be_late, self.send_nonsense, self.switch]
        threads = [threading.Thread(target=self._repeat, args=(role,)) for role in roles]
        self._over.clear()
        for thread in threads:
            thread.start()
        self._over.wait(seconds)
        self._over.set()
        for thread in threads:
            thread.join()

    def _repeat(self, role: Callable[[random.Random], None]) -> None:
        chance = random.Random(next(self._numbers))
        while not self._over.is_set():
            try:
                role(chance)
            except Exception as error:
                self.wrong.append(f"{role.__name__}: {error!r}")
            self.counts[role.__name__] += 1

    def _text(self) -> str:
        return f"say number {next(self._numbers)}"

    def _check(self, text: str, answer: Answer, *allowed: object) -> None:
        if answer.ok:
            if not answer.text.strip('"{}[]\n').count(text):
                self.wrong.append(f"{text!r} was answered {answer}")
        elif answer.status not in allowed:
            self.wrong.append(f"{text!r} was refused: {answer}")

    def ask(self, chance: random.Random) -> None:
        """Good requests; they may be shed, never lost."""
        protocol, text = chance.choice(PROTOCOLS), self._text()
        answer = self.client.ask(protocol, chance.choice(("m", "batched")), text)
        self._check(text, answer, *BUSY)
        # One bad row fails alone.
        if chance.random() < 0.05:
            poison = self.client.ask(
                protocol, "batched", chance.choice(("raise x", "bad", "short"))
            )
            assert not poison.ok

    def leave(self, chance: random.Random) -> None:
        """Clients that do not wait for the answer."""
        path = f"{self.client.server.url}/v1/models/m:predict"
        try:
            httpx.post(
                path,
                json={"instances": [{"data": "burn 0.05"}]},
                timeout=httpx.Timeout(5, read=0.02),
                trust_env=False,
            )
        except httpx.ReadTimeout:
            self.counts["left"] += 1

    def be_late(self, chance: random.Random) -> None:
        """Deadlines that pass, or do not."""
        text = self._text()
        if chance.random() < 0.5:
            answer = self.client.ask(GRPC, "m", text, timeout=0.004)
        else:
            answer = self.client.ask(V1, "m", text, headers={"x-request-timeout-ms": "3"})
        self._check(text, answer, *LATE, *BUSY)

    def send_nonsense(self, chance: random.Random) -> None:
        """Bad input gets a 4xx."""
        path = chance.choice(("/v1/models/m:predict", "/v2/models/m/infer"))
        answer = self.client.http.post(path, content=chance.choice(BAD))
        assert 400 <= answer.status_code < 500, answer

    def switch(self, chance: random.Random) -> None:
        """Load, use, replace and unload a model; requests to it meanwhile are never mixed up."""
        name = "coming"
        add_actor(self.store, name, modelVersion=chance.choice(("1.0", "2.0")))
        url = f"/v2/repository/models/{name}"
        for action in ("load", "load"):
            assert self.client.http.post(f"{url}/{action}").is_success
            text = self._text()
            self._check(text, self.client.ask(NATIVE, name, text))
        assert self.client.http.post(f"{url}/unload").is_success
        assert self.client.ask(V1, name, "say no").status == 404
        assert self.client.http.post("/v2/repository/models/m/load").is_success


def usage(process: psutil.Process, temporary: Path) -> dict[str, int]:
    """What a server holds: bytes of memory, threads, file handles, files on disk."""
    return {
        "memory": process.memory_info().rss,
        "threads": process.num_threads(),
        "handles": process.num_fds(),
        "files": sum(1 for _ in temporary.rglob("*")),
    }


def test_nothing_grows(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "store").mkdir()
    store = store_of(
        tmp_path / "store",
        m="batchSize: 1\njobQueueSize: 20",
        batched="batchSize: 8\nmaxBatchDelay: 2\nminWorkers: 2\nmaxWorkers: 2",
    )
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    options = ("--log_level", "error")
    with talking_to(store, *options, env=environment, fresh=True) as client:
        process = psutil.Process(client.server.process.pid)
        soak = Soak(client, store)
        began = time.monotonic()
        soak.run(MINUTES * 60 / 3)
        before = usage(process, tmp_path / "tmp")
        soak.run(MINUTES * 60 * 2 / 3)
        until(lambda: client.metric("inflight_requests") == 0)
        after = usage(process, tmp_path / "tmp")
        print(f"\n{time.monotonic() - began:.0f} s, {dict(soak.counts)}\n{before}\n{after}")
        assert soak.wrong == []
        assert soak.counts["left"] > 0
        assert after["memory"] < before["memory"] + MEMORY
        assert after["threads"] <= before["threads"] + 4
        assert after["handles"] <= before["handles"] + 10
        assert after["files"] <= before["files"] + 5
        assert client.http.get("/v2/health/ready").json() == {"ready": True}
    assert list((tmp_path / "tmp").iterdir()) == []
