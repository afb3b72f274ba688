"""Loads and unloads that overlap or fail: what serves afterwards, and what is left over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.engine import backoff
from kserve_torch.errors import (
    LoadFailed,
    NotReady,
)
from kserve_torch.events import StateChanged
from kserve_torch.models.registry import Registry
from kserve_torch.models.state import State
from kserve_torch.startup import startup_models

from ..makers import ECHO, make_archive
from ..waiting import until
from .serving import GATED, Gate, answer, serving

#: Likewise, but for the first instance.
LATER_BROKEN = """
import pathlib, time
gate = pathlib.Path({gate!r})
tries = gate.with_name("tries")
def handle(data, context):
    if data is None:
        with tries.open("a") as file:
            file.write("x")
        while tries.stat().st_size > 1:
            if gate.exists():
                raise OSError("bad weights")
            time.sleep(0.005)
    return data
"""


async def test_the_log_tells_what_takes_its_time(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is killed as it loads, for its memory, says no more."""
    caplog.set_level(logging.INFO, "kserve_torch.models")
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    make_archive(tmp_path / "other.mar", {"handler.py": ECHO}, modelName="other")
    async with serving(tmp_path, gate=gate) as registry:
        starting = asyncio.ensure_future(registry.start(startup_models(registry.settings)))
        await until(lambda: len(caplog.messages) == 4)
        assert caplog.messages == [
            "opening m.mar, other.mar",
            "model m 1.0 is loading",
            "model other 1.0 is loading",
            "model other 1.0 is ready",
        ]
        gate.open()
        await starting
        assert caplog.messages[-1] == "model m 1.0 is ready"


async def test_loads_of_a_name_leave_one_that_serves(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    make_archive(tmp_path / "other.mar", {"handler.py": ECHO})
    async with serving(tmp_path, gate=gate) as registry:
        loads = [asyncio.ensure_future(registry.load("m"))]
        await until(registry.names)
        # As of a client that asks again and again because its time-out is shorter than a load.
        loads += [asyncio.ensure_future(registry.load("m")) for _ in range(9)]
        await registry.load("other")  # whatever does not wait for its turn is unpacked by then
        assert len(list(registry.workdir.rglob("MAR-INF"))) == 2
        gate.open()
        assert len(set(await asyncio.gather(*loads))) == 2
        assert await answer(registry) == "1.0"
        assert registry.ready()
        assert len(registry.all()) == 2


@pytest.mark.parametrize(
    ("serves", "comes_back", "drop"),
    [
        (False, False, Registry.unload),
        (False, True, Registry.unregister),
        (True, False, Registry.unregister),
        (True, True, Registry.unload),
    ],
)
async def test_a_removal_overtakes_the_loads_that_run(
    tmp_path: Path,
    gate: Gate,
    serves: bool,
    comes_back: bool,
    drop: Callable[[Registry, str], Awaitable[Any]],
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path, gate=gate) as registry:
        if serves:
            await registry.load("m")
        gated = gate.guards(GATED)
        make_archive(tmp_path / "m.mar", gated, modelVersion="2.0")
        seen: list[object] = []
        registry.observers.add(seen.append)
        loads = [asyncio.ensure_future(registry.load("m"))]
        await until(lambda: seen)
        loads.append(asyncio.ensure_future(registry.load("m")))
        await asyncio.sleep(0)  # it waits for its turn
        gone = asyncio.ensure_future(drop(registry, "m"))
        await until(lambda: registry.names() == [])
        later = asyncio.ensure_future(registry.load("m")) if comes_back else None
        await asyncio.sleep(0)
        gate.open()
        for load in loads:
            with pytest.raises(NotReady, match="unloaded while it was loaded"):
                await load
        await gone
        if later is None:
            assert registry.names() == []
            states = [event.state for event in seen if isinstance(event, StateChanged)]
            assert states.count("LOADING") == 1  # none for the one that waited
            later = asyncio.ensure_future(registry.load("m"))
        assert (await later).ready


async def test_a_version_that_is_registered_during_a_load_stays(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "new.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path, gate=gate) as registry:
        before = await registry.load("m")
        make_archive(tmp_path / "m.mar", gate.guards(GATED))
        seen: list[object] = []
        registry.observers.add(seen.append)
        load = asyncio.ensure_future(registry.load("m"))
        await until(lambda: seen)
        await registry.register("new.mar")
        registry.set_default("m", "2.0")
        gate.open()
        loaded = await load
        assert [version.version for version in registry.versions("m")] == ["1.0", "2.0"]
        assert registry.find("m", "1.0") is loaded
        assert before not in registry.all()
        assert await answer(registry) == "2.0"


async def test_of_two_of_one_version_the_one_that_is_ready_last_stays(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "new.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path, gate=gate) as registry:
        await registry.load("m")
        make_archive(tmp_path / "m.mar", gate.guards(GATED), modelVersion="2.0")
        seen: list[object] = []
        registry.observers.add(seen.append)
        load = asyncio.ensure_future(registry.load("m"))
        await until(lambda: seen)
        registered = await registry.register("new.mar")
        gate.open()
        loaded = await load
        assert registry.all() == [loaded]
        assert registered.state is State.UNLOADING


async def test_clients_are_told_why_no_worker_is_left(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "BACK_OFF", (0.0,))
    files = {"config.yaml": "maxRetryTimeoutInSec: 0", **gate.guards(LATER_BROKEN)}
    make_archive(tmp_path / "m.mar", files, configFile="config.yaml")
    gate.open()
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        version.workers[0].stop()
        await until(lambda: version._queues.predict.staffing.given_up)
        assert version.standing[0] is State.UNAVAILABLE
        assert "bad weights" in version.standing[1]
        with pytest.raises(NotReady, match="bad weights"):
            await answer(registry)
        await registry.scale(version, 0, 0)
        assert version.standing == (State.UNAVAILABLE, "no worker is ready")


async def test_what_is_unloaded_while_it_cannot_be_scaled_is_not_loaded_once_more(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(LATER_BROKEN))
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar")
        tries = gate.path.with_name("tries")
        scaling = asyncio.ensure_future(registry.scale(version, 2, 2))
        await until(lambda: tries.read_text() == "xx")
        unloading = registry.unload("m")
        await until(lambda: version.state is State.UNLOADING)
        gate.open()
        with pytest.raises(LoadFailed, match="bad weights"):
            await scaling
        await unloading
        assert tries.read_text() == "xx"


async def test_nothing_is_loaded_once_the_server_is_being_stopped(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path) as registry:
        registry.draining = True
        for load in (registry.load("m"), registry.register("m.mar")):
            with pytest.raises(NotReady, match="the server is being stopped"):
                await load


async def test_a_load_takes_as_long_as_its_worker_says(tmp_path: Path) -> None:
    """Without the time for which it waited for its turn behind other models."""
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path) as registry:
        version = await registry.load("m")
        assert version.load_seconds == version.workers[0].load_seconds > 0
