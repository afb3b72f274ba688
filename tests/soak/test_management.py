"""Managing models at random, in many places at once, while clients ask for predictions.

Afterwards everything that is left works, and nothing else is left. The registry, its workers and
the endpoints are real; only the sockets are left out.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kserve_torch.engine import tasks
from kserve_torch.errors import ServingError
from kserve_torch.http.app import Route, error_answer
from kserve_torch.http.call import Answer
from kserve_torch.http.management import Management
from kserve_torch.http.metadata import Metadata
from kserve_torch.http.v1 import V1
from kserve_torch.http.v2 import V2
from kserve_torch.models.registry import Registry
from kserve_torch.models.state import State
from kserve_torch.models.version import ModelVersion
from kserve_torch.settings import Settings

from ..http.conftest import call
from ..makers import make_archive
from ..waiting import until
from .minutes import MARKS, MINUTES

pytestmark = MARKS

#: Answers with the archive's mark and the row; ``die`` ends the worker.
HANDLER = """
import time

MARK = {mark!r}


def handle(data, context):
    if data is None:
        {start}
        return None
    texts = [str(row["data"]) for row in data]
    if "die" in texts:
        raise SystemExit(3)
    with open(context.system_properties["model_dir"] + "/mark.txt") as file:
        assert file.read() == MARK, "another archive's files"
    return [MARK + " " + text for text in texts]
"""
SOUND, SLOW, RAISING = "pass", "time.sleep(0.05)", "raise ValueError('on purpose')"
DAMAGED = b"PK, and no archive"
VERSIONS = ("1.0", "2.0", "3.0")
#: Never without a good version: its clients are never refused.
STEADY = "steady"
#: Registered, broken, unloaded and killed at will.
WILD = ("wild", "other")
#: What an operation on a wild model may answer; 500 and 503 are those of broken archives.
EXPECTED = (200, 202, 206, 400, 403, 404, 409, 500, 503)


class Turmoil:
    """One registry in an empty store, and what is done to it."""

    def __init__(self, seed: int, store: Path) -> None:
        settings = Settings(model_store=store, enable_model_api=True)
        self.chance = random.Random(seed)
        self.store = store
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.registry = Registry(settings)
        self.v2 = V2(self.registry)
        self.v1 = V1(self.registry, self.v2)
        self.metadata = Metadata(self.registry)
        self.management = Management(self.registry, settings, tokens=None)
        self._marks: set[str] = set()

    async def run(self, seconds: float) -> None:
        """Operations and predictions side by side for so long, then the checks."""
        for name in (STEADY, *WILD):
            for version in VERSIONS:
                self._write(name, version, SOUND)
        await self.registry.register(f"{STEADY}-1.0.mar")
        ends = time.monotonic() + seconds
        roles = [*[self._operate] * 4, *[self._predict] * 4]
        await asyncio.gather(*(self._repeat(role, ends) for role in roles))
        try:
            async with asyncio.timeout(30):
                await until(self._calm)
        except TimeoutError:
            self.wrong.append(f"never settles: {tasks._UNFINISHED}, {self._left()}")
        for version in self.registry.all():
            await self._check(version)
        await self.registry.close()

    async def _repeat(self, role: Callable[[], Awaitable[None]], ends: float) -> None:
        while time.monotonic() < ends:
            await role()
            await asyncio.sleep(self.chance.choice((0, 0, 0.005, 0.02)))

    def _write(self, name: str, version: str, start: str) -> None:
        """Put an archive into the store, in the place of the one that was there."""
        mark = f"{name}-{version}-{len(self._marks)}"
        self._marks.add(mark)
        files = {"handler.py": HANDLER.format(mark=mark, start=start), "mark.txt": mark}
        folder = self.store.with_name("written")
        archive = make_archive(folder / "a.mar", files, modelName=name, modelVersion=version)
        archive.replace(self.store / f"{name}-{version}.mar")

    async def _ask(self, route: Route, method: str, target: str, sent: Any = None) -> Answer:
        body = b"" if sent is None else json.dumps(sent).encode()
        asked = call(method, target, body, management=True)
        try:
            answer = await route(asked)
        except ServingError as error:  # any other is a fault of the server and ends the test
            answer = error_answer(asked, error)
        assert answer is not None, target
        return answer

    async def _operate(self) -> None:
        chance = self.chance
        name, version = chance.choice((STEADY, *WILD)), chance.choice(VERSIONS)
        steady = name == STEADY
        waits = f"synchronous={chance.choice(('true', 'false'))}"
        fewest = chance.randint(1 if steady else 0, 3)
        one, repository = f"/models/{name}/{version}", f"/v2/repository/models/{name}"
        choices = [
            ("POST", f"/models?url={name}-{version}.mar&initial_workers={min(fewest, 1)}&{waits}"),
            ("PUT", f"{one}?min_worker={fewest}&max_worker={fewest + 1}&{waits}"),
            ("PUT", f"{one}/set-default"),
            ("POST", f"{repository}/load"),
            ("DELETE", one),
            ("POST", f"{repository}/unload"),
            ("DELETE", f"/models/{name}"),
            ("WRITE", ""),
        ]
        method, target = chance.choice(choices[:4] if steady else choices)
        if method == "WRITE":
            self._write(name, version, chance.choice((SOUND, SOUND, SLOW, RAISING)))
            if chance.random() < 0.2:
                (self.store / f"{name}-{version}.mar").write_bytes(DAMAGED)
            return
        route = (self.management if target.startswith("/models") else self.metadata).route
        answer = await self._ask(route, method, target)
        self.counts[f"{method} {answer.status}"] += 1
        if answer.status not in EXPECTED or (steady and answer.status in (400, 500)):
            self.wrong.append(f"{method} {target}: {answer}")

    async def _predict(self) -> None:
        name = self.chance.choice((STEADY, *WILD))
        dies = name != STEADY and self.chance.random() < 0.02
        text = "die" if dies else str(self.chance.random())
        path = f"/v1/models/{name}:predict"
        answer = await self._ask(self.v1.route, "POST", path, {"instances": [{"data": text}]})
        self.counts[f"{name} {answer.status}"] += 1
        if answer.status == 200:
            mark, got = json.loads(bytes(answer.body))["predictions"][0].split()  # type: ignore[arg-type]
            right = got == text and mark in self._marks and mark.startswith(f"{name}-")
        else:
            right = name != STEADY and (dies or answer.status in (404, 503))
        if not right:
            self.wrong.append(f"{path} with {text}: {answer}")

    # --- afterwards ---

    def _calm(self) -> bool:
        left = tasks._UNFINISHED or self._left()
        return not left and all(map(_calm, self.registry.all()))

    def _left(self) -> dict[str, Any]:
        """What there is too much of: threads, unpacked archives, loads that still count."""
        versions = self.registry.all()
        threads = [thread.name for thread in threading.enumerate() if " worker " in thread.name]
        folders = list((self.registry.workdir / "models").iterdir())
        loads = self.registry._reloads._by_name
        there = {"threads": threads, "folders": folders, "loads": loads}
        due = {
            "threads": sum(len(version.workers) for version in versions),
            "folders": sum(version.archive is not None for version in versions),
            "loads": 0,
        }
        return {what: found for what, found in there.items() if len(found) != due[what]}

    async def _check(self, version: ModelVersion) -> None:
        """It answers, unless its archive is a broken one, or it was scaled to no workers."""
        if self.registry.present(version.name) not in self.registry.versions(version.name):
            self.wrong.append(f"{version.name}: its default is not one of its versions")
        if version.state is not State.READY or not version.scaled_to[0]:
            return
        tensor = {"name": "data", "shape": [1], "datatype": "BYTES", "data": ["last"]}
        path = f"/v2/models/{version.name}/versions/{version.version}/infer"
        answer = await self._ask(self.v2.route, "POST", path, {"inputs": [tensor]})
        if answer.status != 200 and b"on purpose" not in bytes(answer.body):  # type: ignore[arg-type]
            self.wrong.append(f"{path}: {answer}")


def _calm(version: ModelVersion) -> bool:
    """Whether nothing runs and there are as many workers as there are to be, or none can be."""
    statistics = version.statistics()
    fewest, most = version.scaled_to
    broken = "on purpose" in version._queues.predict.staffing.reason
    staffed = broken or fewest <= version.ready_workers <= most
    loaded = version.state in (State.READY, State.UNAVAILABLE)
    return loaded and staffed and not statistics.inflight and not statistics.running


async def test_models_come_and_go(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    ends = time.monotonic() + MINUTES * 60 / 3
    seed = 0
    while time.monotonic() < ends:
        seed += 1
        store = tmp_path / f"{seed}" / "store"
        store.mkdir(parents=True)
        turmoil = Turmoil(seed, store)
        await turmoil.run(1.0)
        counts += turmoil.counts
        assert turmoil.wrong == [], f"seed {seed}"
    print(f"\n{seed} times, {dict(sorted(counts.items()))}")
    assert counts[f"{STEADY} 200"] > 0
    assert all(counts[f"{name} {status}"] for name in WILD for status in (200, 404, 503))
