"""Loads and unloads that overlap or fail: what serves afterwards, and what is left over."""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.archives.archive import Archive
from kserve_torch.engine import pauses
from kserve_torch.errors import (
    LoadFailed,
    ModelNotFound,
    NotReady,
    PackagesFailed,
    ServerError,
    UnmetRequirements,
)
from kserve_torch.events import StateChanged, WorkerChanged
from kserve_torch.messages import Request
from kserve_torch.models import factory
from kserve_torch.models.registration import Registration
from kserve_torch.models.registry import Registry
from kserve_torch.models.state import State
from kserve_torch.runtime import loading
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.sharing import Weights
from kserve_torch.settings import load_settings
from kserve_torch.settings.models import StartupModel
from kserve_torch.startup import startup_models

from ..makers import ECHO, make_archive, write
from ..threads import workers_end
from ..waiting import until

#: Is initialised when the file is there.
GATED = """
import pathlib, time
def handle(data, context):
    if data is None:
        while not pathlib.Path({gate!r}).exists():
            time.sleep(0.005)
    return data
"""
#: Likewise, and fails then.
GATED_AND_BROKEN = GATED.replace("    return data", "        raise OSError('bad weights')")

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

#: Says which of its functions is the handler.
TWO_HANDLERS = """
def handle(data, context):
    return data and ["standard"] * len(data)
def special(data, context):
    return data and ["special"] * len(data)
"""


class Gate:
    """What `GATED` handlers wait for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        self.path.touch()

    def guards(self, handler: str) -> dict[str, str]:
        """The files of an archive."""
        return {"handler.py": handler.format(gate=str(self.path))}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@asynccontextmanager
async def serving(store: Path, gate: Gate, *options: str) -> AsyncIterator[Registry]:
    settings = load_settings(["--model_store", str(store), *options], {}, "kserve_torch")
    async with workers_end():
        registry = Registry(settings)
        try:
            yield registry
        finally:
            gate.open()
            await registry.close(5.0)


def remove(path: Path) -> None:
    path.unlink()


async def answer(registry: Registry, name: str = "m") -> str:
    reply = await registry.submit(Request(id="1", model=name, rows=[{"data": "x"}]))
    return reply.version


async def test_loads_of_a_name_leave_one_that_serves(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    make_archive(tmp_path / "other.mar", {"handler.py": ECHO})
    async with serving(tmp_path, gate) as registry:
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


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("comes_back", [False, True])
@pytest.mark.parametrize("drop", [Registry.unload, Registry.unregister])
async def test_a_removal_overtakes_the_loads_that_run(
    tmp_path: Path,
    gate: Gate,
    serves: bool,
    comes_back: bool,
    drop: Callable[[Registry, str], Awaitable[Any]],
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path, gate) as registry:
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
    async with serving(tmp_path, gate) as registry:
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
    async with serving(tmp_path, gate) as registry:
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


async def test_while_its_first_worker_starts_a_registered_model_is_loading(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    async with serving(tmp_path, gate) as registry:
        version = await registry.register("m.mar", workers=0)
        assert version.standing == (State.UNAVAILABLE, "no worker is ready")
        scaling = asyncio.ensure_future(registry.scale(version, 1, 1))
        await until(lambda: version.workers)
        assert version.standing == (State.LOADING, "no worker is ready")
        gate.open()
        await scaling
        assert version.standing == (State.READY, "")


async def test_clients_are_told_why_no_worker_is_left(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BACK_OFF", (0.0,))
    files = {"config.yaml": "maxRetryTimeoutInSec: 0", **gate.guards(LATER_BROKEN)}
    make_archive(tmp_path / "m.mar", files, configFile="config.yaml")
    gate.open()
    async with serving(tmp_path, gate) as registry:
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
    async with serving(tmp_path, gate) as registry:
        version = await registry.register("m.mar")
        scaling = asyncio.ensure_future(registry.scale(version, 2, 2))
        await until(lambda: len(version.workers) == 2)
        unloading = registry.unload("m")
        await until(lambda: version.state is State.UNLOADING)
        gate.open()
        with pytest.raises(LoadFailed, match="bad weights"):
            await scaling
        await unloading
        assert gate.path.with_name("tries").read_text() == "xx"


async def test_a_start_up_model_may_be_unloaded_while_others_load(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "quick.mar", {"handler.py": ECHO}, modelName="quick")
    slow = gate.guards(GATED)
    make_archive(tmp_path / "slow.mar", slow, modelName="slow")
    async with serving(tmp_path, gate) as registry:
        models = [StartupModel(name=None, file=f"{name}.mar") for name in ("quick", "slow")]
        starting = asyncio.ensure_future(registry.start(models))
        await until(lambda: any(version.ready for version in registry.all()))
        await registry.unload("quick")
        gate.open()
        await starting
        assert registry.names() == ["slow"]
        assert registry.ready()


async def test_a_configured_default_that_fails_is_not_replaced_by_another_version(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "one.mar", {"handler.py": "import absent_package"})
    make_archive(tmp_path / "two.mar", {"handler.py": ECHO}, modelVersion="2.0")
    make_archive(tmp_path / "torn.mar", {}, modelVersion="3.0").write_bytes(b"no zip")
    for default, number in (("one.mar", "1.0"), ("torn.mar", "3.0")):
        async with serving(tmp_path, gate) as registry:
            models = [
                StartupModel(name="m", file=file, version=version, is_default=file == default)
                for file, version in (("two.mar", "2.0"), (default, number))
            ]
            await registry.start(models)
            assert registry.find("m").version == number
            assert registry.find("m", "2.0").ready
            assert not registry.ready()
            with pytest.raises(NotReady, match="it failed to load"):
                await answer(registry)


#: Says which archive it came with.
NAMED = "def handle(data, context):\n    return [{0!r} for _ in data or ()]"


def named(path: Path, **model: str) -> None:
    make_archive(path, {"handler.py": NAMED.format(path.name)}, **model)


async def said(registry: Registry, name: str = "m") -> list[str]:
    reply = await registry.submit(Request(id="1", model=name, rows=[{"data": "x"}]))
    return list(reply.results)


def startup(*files: str, **more: Any) -> list[StartupModel]:
    return [StartupModel(name=None, file=file, **more) for file in files]


@pytest.mark.parametrize("slow", ["m_one.mar", "m_two.mar"])
async def test_of_two_archives_with_one_name_and_version_the_first_serves_and_the_other_is_shown(
    tmp_path: Path, gate: Gate, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(tmp_path / "m_one.mar")
    named(tmp_path / "m_two.mar")
    opens, other_is_open = factory.open_archive, threading.Event()

    def slowly(path: Path, *args: Any, **more: Any) -> Archive:
        assert path.name != slow or other_is_open.wait(10)
        archive = opens(path, *args, **more)
        other_is_open.set()
        return archive

    monkeypatch.setattr(factory, "open_archive", slowly)
    async with serving(tmp_path, gate) as registry:
        await registry.start(startup("m_one.mar", "m_two.mar"))
        assert await said(registry) == ["m_one.mar"]
        assert registry.names() == ["m", "m_two.mar"]
        [other] = registry.versions("m_two.mar")
        assert (other.state, other.version) == (State.UNAVAILABLE, "1.0")
        assert other.reason == ("m_two.mar: version 1.0 of model m is another archive's, m_one.mar")
        assert not registry.ready()
        with pytest.raises(NotReady, match=r"another archive's, m_one\.mar"):
            await said(registry, "m_two.mar")
        await until(lambda: len(list(registry.workdir.glob("*/*/MAR-INF"))) == 1)


async def test_of_two_snapshot_entries_with_one_version_the_default_serves(
    tmp_path: Path, gate: Gate
) -> None:
    named(tmp_path / "a.mar")
    named(tmp_path / "b.mar")
    for default, first, other in (("b.mar", "b.mar", "a.mar"), ("a.mar", "a.mar", "m")):
        models = [
            StartupModel(name="m", file=file, version=version, is_default=file == default)
            for file, version in (("a.mar", "1.0"), ("b.mar", "2.0"))
        ]
        async with serving(tmp_path, gate) as registry:
            await registry.start(models)
            assert await said(registry) == [first]
            [failed] = [v for v in registry.all() if v.state is State.UNAVAILABLE]
            # The place that its entry gives it, unless that is the other's.
            assert (failed.name, failed.version) == (other, "1.0" if other == "a.mar" else "2.0")


async def test_what_cannot_be_read_takes_no_place_from_what_can(tmp_path: Path, gate: Gate) -> None:
    (tmp_path / "m.mar").write_bytes(b"no zip")
    named(tmp_path / "n.mar")
    async with serving(tmp_path, gate) as registry:
        await registry.start(startup("m.mar", "n.mar"))
        assert await said(registry) == ["n.mar"]
        assert "damaged" in registry.find("m.mar").reason


async def test_a_start_up_model_without_a_name_shows_no_secrets_of_its_url(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, gate) as registry:
        await registry.start(startup("s3://me:secret@bucket/m?token=secret"))
        assert registry.names() == ["m"]
    said = "model s3://bucket/m failed to load: Model not found at: m"
    assert said in [record.getMessage() for record in caplog.records]


async def test_a_start_up_model_leaves_alone_what_a_client_was_quicker_to_register(
    tmp_path: Path, gate: Gate
) -> None:
    named(tmp_path / "one.mar")
    named(tmp_path / "two.mar")
    async with serving(tmp_path, gate) as registry:
        await registry.register("one.mar")
        await registry.start(startup("two.mar"))
        assert await said(registry) == ["one.mar"]
        assert len(registry.all()) == 1
        assert registry.ready()


async def test_a_registration_that_fails_late_leaves_the_version_that_came_meanwhile(
    tmp_path: Path, gate: Gate
) -> None:
    broken = gate.guards(GATED_AND_BROKEN)
    make_archive(tmp_path / "one.mar", broken)
    make_archive(tmp_path / "two.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path, gate) as registry:
        wish = Registration.read({"url": "one.mar"})
        version = await wish.enter(registry)
        starting = asyncio.ensure_future(wish.start(registry, version, 1))
        await registry.register("two.mar")
        gate.open()
        with pytest.raises(ServerError, match="bad weights"):
            await starting
        assert registry.all() == [registry.present("m")]
        assert registry.version_of("m") == "2.0"
        assert await answer(registry) == "2.0"


async def test_a_registration_answers_when_its_time_is_over(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    async with serving(tmp_path, gate) as registry:
        assert registry.settings.unregister_model_timeout > 60
        wish = Registration.read({"url": "m.mar", "startup_timeout": "1"})
        version = await wish.enter(registry)
        async with asyncio.timeout(30):
            with pytest.raises(ServerError, match="startupTimeout"):
                await wish.start(registry, version, 1)
        assert registry.names() == []


def make_requiring(path: Path) -> None:
    """An archive with a list of requirements."""
    files = {"handler.py": ECHO, "requirements.txt": ""}
    make_archive(path, files, requirementsFile="requirements.txt")


async def test_requests_wait_for_workers_as_soon_as_they_are_to_be_started(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path, gate, "--install_py_dep_per_model", "true") as registry:
        version = await registry.register("m.mar", workers=0)
        scaling = asyncio.create_task(version.scale(1, 1))
        await asyncio.sleep(0)
        version.require_ready()
        await scaling


async def test_what_an_archive_requires_is_installed_before_a_start_has_a_time_limit(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    for module in (factory, loading):
        monkeypatch.setattr(
            module, "packages_of", lambda *_: threads.append(threading.current_thread().name)
        )
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, gate, "--install_py_dep_per_model", "true") as registry:
        await registry.register("m.mar")
    before, meanwhile = threads
    assert "worker" not in before
    assert "worker" in meanwhile


async def test_what_cannot_be_installed_is_the_reason_why_no_worker_was_started(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/packages")

    monkeypatch.setattr(factory, "packages_of", full)
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, gate, "--install_py_dep_per_model", "true") as registry:
        await registry.start(startup("m.mar"))
        version = registry.find("m")
        assert version.state is State.UNAVAILABLE
        assert "No space left on device" in version.reason
        assert version.workers == []


async def test_a_registration_installs_nothing_before_workers_are_started(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise PackagesFailed("no package absent")

    monkeypatch.setattr(factory, "packages_of", absent)
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, gate, "--install_py_dep_per_model", "true") as registry:
        wish = Registration.read({"url": "m.mar"})
        version = await wish.enter(registry)
        with pytest.raises(UnmetRequirements, match="no package absent"):
            await wish.start(registry, version, 1)
        assert registry.names() == []


async def test_what_is_unregistered_while_its_packages_are_installed_starts_no_worker(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        done.wait()

    monkeypatch.setattr(factory, "packages_of", slow)
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, gate, "--install_py_dep_per_model", "true") as registry:
        loading = asyncio.ensure_future(registry.register("m.mar"))
        await until(begun.is_set)
        version = registry.present("m")
        try:
            await registry.unregister("m")
        finally:
            done.set()
        with pytest.raises(NotReady, match="unloaded"):
            await loading
        assert (version.state, version.workers) == (State.UNLOADING, [])


async def test_an_archive_that_cannot_be_opened_says_so_until_it_is_loaded_or_unloaded(
    tmp_path: Path, gate: Gate
) -> None:
    archive = tmp_path / "m.mar"
    async with serving(tmp_path, gate) as registry:
        for text in ("no zip", "no zip either"):
            archive.write_text(text)
            with pytest.raises(LoadFailed, match="damaged"):
                await registry.load("m")
            [version] = registry.all()
            assert (version.name, version.state) == ("m", State.UNAVAILABLE)
            assert "damaged" in version.reason
            assert not registry.ready()
            with pytest.raises(NotReady, match="damaged"):
                await answer(registry)
        make_archive(archive, {"handler.py": ECHO}, modelVersion="2.0")
        await registry.load("m")
        assert await answer(registry) == "2.0"
        assert len(registry.all()) == 1
        archive.write_text("no zip")
        with pytest.raises(LoadFailed, match="damaged"):
            await registry.load("m")
        assert await answer(registry) == "2.0"
        assert registry.ready()
        await registry.unload("m")
        with pytest.raises(LoadFailed, match="damaged"):
            await registry.load("m")
        await registry.unload("m")
        assert registry.names() == []
        with pytest.raises(ModelNotFound):
            await registry.load("absent")
        assert registry.names() == []


async def test_an_unload_overtakes_a_load_whose_archive_cannot_be_opened(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    opens, opening = factory.open_archive, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(*args: Any, **more: Any) -> Archive:
        loop.call_soon_threadsafe(opening.set)
        while not gate.path.exists():
            time.sleep(0.005)
        return opens(*args, **more)

    async with serving(tmp_path, gate) as registry:
        await registry.load("m")
        (tmp_path / "m.mar").write_text("no zip")
        monkeypatch.setattr(factory, "open_archive", slowly)
        load = asyncio.ensure_future(registry.load("m"))
        await opening.wait()
        gone = registry.unload("m")
        gate.open()
        with pytest.raises(LoadFailed, match="damaged"):
            await load
        await gone
        assert registry.names() == []


async def test_a_reload_takes_the_archive_from_where_it_came(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "m_v2.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path, gate) as registry:
        await registry.register("m_v2.mar")
        assert (await registry.load("m")).version == "2.0"
        remove(tmp_path / "m_v2.mar")
        assert (await registry.load("m")).version == "1.0"
        remove(tmp_path / "m.mar")
        with pytest.raises(ModelNotFound):
            await registry.load("m")
        assert await answer(registry) == "1.0"


async def test_a_reload_leaves_versions_of_other_archives(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "m_v2.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path, gate) as registry:
        await registry.start(startup_models(registry.settings))
        other = registry.find("m", "2.0")
        await registry.load("m")
        make_archive(tmp_path / "m.mar", {"handler.py": ECHO}, modelVersion="1.1")
        await registry.load("m")
        assert [version.version for version in registry.versions("m")] == ["1.1", "2.0"]
        assert registry.find("m", "2.0") is other
        assert other.ready
        assert await answer(registry) == "1.1"


async def test_a_reload_keeps_what_the_registration_said(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": TWO_HANDLERS})
    async with serving(tmp_path, gate) as registry:
        wish = {"url": "m.mar", "handler": "handler:special", "batch_size": 7}
        registration = Registration.read({**wish, "initial_workers": 3})
        version = await registration.enter(registry)
        await registration.start(registry, version, 3)
        for _ in range(2):
            version = await registry.load("m")
            reply = await registry.submit(Request(id="1", model="m", rows=[{}]))
            assert reply.results == ["special"]
            assert (version.limits.batch_size, version.ready_workers) == (7, 3)


async def test_a_reload_keeps_the_number_of_workers(tmp_path: Path, gate: Gate) -> None:
    """Those of the archive, which may be a new one, unless a client has asked for others."""

    def archive(workers: int) -> None:
        yaml = {"model-config.yaml": f"{{minWorkers: {workers}, maxWorkers: 4}}"}
        files = {"handler.py": ECHO, **yaml}
        make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")

    archive(1)
    async with serving(tmp_path, gate) as registry:
        await registry.register("m.mar")
        archive(2)
        assert (await registry.load("m")).scaled_to == (2, 4)
        await registry.scale(registry.find("m"), 1, 3)
        assert (await registry.load("m")).scaled_to == (1, 3)
        await registry.scale(registry.find("m"), 0, 0)
        assert (await registry.load("m")).scaled_to == (1, 3)


@pytest.mark.parametrize("layout", ["archive", "bare", "mar"])
async def test_the_model_that_the_model_folder_itself_is_can_be_loaded_again(
    tmp_path: Path, layout: str
) -> None:
    path = tmp_path / f"digits.{layout}"
    make = write if layout == "bare" else make_archive
    make(path, {"handler.py": ECHO})
    registry = Registry(load_settings(["--model_dir", str(path)], {}, "kserve_torch"))
    await registry.start(startup_models(registry.settings))
    [name] = registry.names()
    first = registry.find(name)
    second = await registry.load(name)
    assert second.ready
    assert second is not first
    await registry.unload(name)
    assert (await registry.load(name)).ready
    await registry.close(5.0)


async def test_a_start_up_model_that_could_not_be_read_is_looked_for_where_it_was(
    tmp_path: Path, gate: Gate
) -> None:
    (tmp_path / "m_v1.mar").write_bytes(b"no zip")
    async with serving(tmp_path, gate) as registry:
        await registry.start([StartupModel(name="m", file="m_v1.mar")])
        assert registry.find("m").state is State.UNAVAILABLE
        make_archive(tmp_path / "m_v1.mar", {"handler.py": ECHO})
        assert (await registry.load("m")).ready


async def test_a_reload_keeps_what_was_configured(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "m_v1.mar", {"handler.py": ECHO})
    details = '"marName": "m_v1.mar", "minWorkers": 2, "maxWorkers": 3, "batchSize": 5'
    config = tmp_path / "config.properties"
    config.write_text(f'models={{"digits": {{"1.0": {{{details}}}}}}}\n')
    async with serving(tmp_path, gate, "--ts-config", str(config)) as registry:
        await registry.start(startup_models(registry.settings))
        assert registry.find("digits").scaled_to == (2, 3)
        version = await registry.load("digits")
        assert (version.scaled_to, version.limits.batch_size) == ((2, 3), 5)
        await registry.unload("digits")
        version = await registry.load("digits")
        assert (version.scaled_to, version.limits.batch_size) == ((2, 3), 5)


async def test_a_start_up_model_stays_one_when_it_is_loaded_again(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "late.mar", {"handler.py": ECHO}, modelName="late")
    async with serving(tmp_path, gate) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        await registry.unload("m")
        assert (await registry.load("m")).loaded_at_startup
        assert not (await registry.load("late")).loaded_at_startup


async def test_what_was_loaded_too_late_is_not_kept_in_memory(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[weakref.ref[Instance]] = []
    load = factory.load_instance

    def gone() -> bool:
        gc.collect()
        return loaded[0]() is None

    def noted(*args: Any, **options: Any) -> Instance:
        instance = load(*args, **options)
        loaded.append(weakref.ref(instance))
        return instance

    monkeypatch.setattr(factory, "load_instance", noted)
    files = {**gate.guards(GATED), "model-config.yaml": "startupTimeout: 0.2"}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")
    async with serving(tmp_path, gate) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        version = registry.find("m")
        assert (version.state, version.statistics().hung) == (State.UNAVAILABLE, 1)
        gate.open()
        await until(lambda: version.statistics().hung == 0)
        await until(gone)


async def test_the_handler_of_a_worker_that_left_is_not_kept_in_memory(
    tmp_path: Path, gate: Gate
) -> None:
    """Though later ones took its weights."""
    files = {"handler.py": CIRCULAR, "model-config.yaml": "{minWorkers: 2, maxWorkers: 2}"}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")
    async with serving(tmp_path, gate) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        version = registry.find("m")
        first = version.workers[0]
        assert first.index == 0
        assert first.instance is not None
        handler = weakref.ref(first.instance._entry.service)
        first.stop()

        def gone() -> bool:
            gc.collect()
            return handler() is None

        number = first.number
        del first
        await until(lambda: number not in [worker.number for worker in version.workers])
        await until(lambda: version.ready_workers == 2)
        await until(gone)


#: Loads the weights that a request asks for, and remembers which it has loaded.
SWITCHING = """
import torch
class Switching:
    def initialize(self, context):
        self.model = torch.nn.Linear(1, 1, bias=False).eval()
        torch.nn.init.ones_(self.model.weight)
        self.loaded = 1.0
    def handle(self, data, context):
        wanted = float(data[0]["data"])
        if wanted != self.loaded:
            self.model.load_state_dict({"weight": torch.tensor([[wanted]])})
            self.loaded = wanted
        return [self.model(torch.ones(1)).item()]
"""


async def test_who_shared_weights_that_another_handler_has_written_to_is_loaded_anew(
    tmp_path: Path, gate: Gate
) -> None:
    files = {"handler.py": SWITCHING, "model-config.yaml": "{minWorkers: 3, maxWorkers: 3}"}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")

    async def served(wanted: int) -> Any:
        request = Request(id="1", model="m", rows=[{"data": wanted}])
        return (await registry.submit(request)).results[0]

    async with serving(tmp_path, gate) as registry:
        version = await registry.register("m.mar")
        before = {worker.number for worker in version.workers}
        assert await served(2) == 2
        await until(lambda: len(before & {worker.number for worker in version.workers}) == 1)
        await until(lambda: version.ready_workers == 3)
        for worker in version.workers:
            assert worker.instance is not None
            assert not worker.instance.weights.are_outdated
            reply = worker.instance.run([Request(id="1", model="m", rows=[{"data": 1}])])
            assert reply[0].results == [1]
        assert version._firsts.on(None) is None


async def test_who_loads_while_another_handler_writes_to_its_weights_is_loaded_once_more(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": SWITCHING})
    async with serving(tmp_path, gate) as registry:
        version = await registry.register("m.mar")
        load, loaded = version._load, list[Instance]()

        def noted(*args: Any) -> Instance:
            loaded.append(load(*args))
            if len(loaded) == 1:
                assert loaded[0].weights._written is not None
                loaded[0].weights._written.append(weakref.ref(Weights(None)))
            return loaded[-1]

        monkeypatch.setattr(version, "_load", noted)
        await registry.scale(version, 2, 2)
        await until(lambda: version.ready_workers == 2 and len(loaded) > 1)
        instances = [worker.instance for worker in version.workers]
        assert loaded[0] not in instances
        assert loaded[0]._namespace.closed  # type: ignore[attr-defined]
        assert not any(one is None or one.weights.are_outdated for one in instances)


#: Says when it is freed.
FREED = """
import weakref
class Freed:
    def initialize(self, context):
        from pathlib import Path
        weakref.finalize(self, Path({gate!r} + "-freed").touch)
    def handle(self, data, context):
        return data
"""


async def test_the_handler_of_a_worker_that_left_needs_no_garbage_collection(
    tmp_path: Path, gate: Gate
) -> None:
    """On an idle server there may be none for hours."""
    make_archive(tmp_path / "m.mar", gate.guards(FREED))
    async with serving(tmp_path, gate) as registry:
        version = await registry.register("m.mar")
        await registry.scale(version, 2, 2)
        gc.disable()
        try:
            await registry.scale(version, 1, 1)
            await until(gate.path.with_name("gate-freed").exists)
        finally:
            gc.enable()


@pytest.fixture
def idle() -> Iterator[None]:
    """As on an idle server, nothing starts a garbage collection."""
    gc.disable()
    yield
    gc.enable()


CIRCULAR = """
class Handler:
    def initialize(self, context):
        self.own = self
    def handle(self, data, context):
        return data
"""


@pytest.mark.usefixtures("idle")
async def test_an_unloaded_model_is_not_kept_in_memory(tmp_path: Path, gate: Gate) -> None:
    """Its handler refers to itself, as with an attribution of its own method, or micro batches."""
    make_archive(tmp_path / "m.mar", {"handler.py": CIRCULAR})
    async with serving(tmp_path, gate) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        instance = registry.find("m").workers[0].instance
        assert instance is not None
        handler = weakref.ref(instance._entry.service)
        del instance
        await registry.unload("m")
        assert handler() is None


async def test_nothing_is_left_of_what_failed(tmp_path: Path, gate: Gate) -> None:
    def names() -> set[str]:
        names = {*sys.modules, *logging.root.manager.loggerDict}
        return {name for name in names if name.startswith("kserve_torch_archive")}

    def folders() -> list[str]:  # by os.walk, which may meet what is just removed
        return [path for path, _, _ in os.walk(registry.workdir) if path.endswith("MAR-INF")]

    before = names()
    async with serving(tmp_path, gate) as registry:
        answers_nothing = "import util\ndef handle(data, context): pass"
        logs = "import logging\nlogging.getLogger(__name__)"
        files = {"handler.py": answers_nothing, "util.py": logs, "warmup.json": "{}"}
        make_archive(tmp_path / "m.mar", files)
        for _ in range(3):
            with pytest.raises(LoadFailed, match="warm-up"):
                await registry.register("m.mar")
        await until(lambda: names() == before and not folders())

        make_archive(tmp_path / "m.mar", {"handler.py": "import absent_package"})
        await registry.start([StartupModel(name=None, file="m.mar")])
        assert registry.find("m").state is State.UNAVAILABLE
        make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
        await registry.register("m.mar")
        await until(lambda: len(folders()) == 1)
        await registry.unregister("m")
        await until(lambda: not folders())
        assert not [file for file in linecache.cache if file.startswith(str(registry.workdir))]


async def test_links_that_were_there_at_the_start_are_followed(tmp_path: Path, gate: Gate) -> None:
    """KServe's storage initializer links what ``file://`` names."""
    (tmp_path / "store").mkdir()
    for name in ("m", "later"):
        make_archive(tmp_path / f"{name}.mar", {"handler.py": ECHO}, modelName=name)
    (tmp_path / "store/m.mar").symlink_to(tmp_path / "m.mar")
    async with serving(tmp_path / "store", gate) as registry:
        await registry.start(startup_models(registry.settings))
        assert await answer(registry) == "1.0"
        await registry.load("m")
        await registry.unload("m")
        await registry.load("m")
        assert await answer(registry) == "1.0"
        (tmp_path / "store/later.mar").symlink_to(tmp_path / "later.mar")
        with pytest.raises(ModelNotFound):
            await registry.register("later.mar")


async def test_nothing_is_loaded_once_the_server_is_being_stopped(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path, gate) as registry:
        registry.draining = True
        for load in (registry.load("m"), registry.register("m.mar")):
            with pytest.raises(NotReady, match="the server is being stopped"):
                await load


def make_first_and_later(folder: Path, *, later: str = "import absent_package") -> None:
    """Archives of a model that loads, and of one with the handler ``later``."""
    make_archive(folder / "first.mar", {"handler.py": ECHO}, modelName="first")
    make_archive(folder / "later.mar", {"handler.py": later}, modelName="later")


async def test_a_model_that_comes_later_counts_once_it_has_been_ready(
    tmp_path: Path, gate: Gate
) -> None:
    make_first_and_later(tmp_path)
    async with serving(tmp_path, gate) as registry:
        with pytest.raises(LoadFailed):
            await registry.load("later")
        assert not registry.ready()
        await registry.start(startup("first.mar"))
        assert registry.ready()
        assert registry.find("later").state is State.UNAVAILABLE
        make_first_and_later(tmp_path, later=ECHO)
        await registry.load("later")
        assert registry.ready()
        await registry.scale(registry.find("later"), 0, 0)
        assert not registry.ready()


async def test_a_model_that_is_registered_counts_once_a_worker_has_been_ready(
    tmp_path: Path, gate: Gate
) -> None:
    make_first_and_later(tmp_path)
    async with serving(tmp_path, gate) as registry:
        await registry.start(startup("first.mar"))
        version = await registry.register("later.mar", workers=0)
        assert registry.ready()
        with pytest.raises(LoadFailed):
            await registry.scale(version, 1, 1)
        assert registry.ready()
        await registry.unregister("later")
        make_first_and_later(tmp_path, later=ECHO)
        version = await registry.register("later.mar", workers=0)
        await registry.scale(version, 1, 1)
        assert registry.ready()
        await registry.scale(version, 0, 0)
        assert not registry.ready()


async def test_who_is_told_of_the_first_worker_finds_the_server_ready(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path, gate) as registry:
        version = await registry.register("m.mar", workers=0)
        found: list[bool] = []
        registry.observers.add(lambda _: found.append(registry.ready()), [WorkerChanged])
        await registry.scale(version, 1, 1)
        assert found == [True]


@pytest.mark.parametrize("content", ["import absent_package", None])
async def test_a_configured_model_that_fails_again_when_it_is_loaded_is_still_missing(
    tmp_path: Path, gate: Gate, content: str | None
) -> None:
    make_archive(tmp_path / "first.mar", {"handler.py": ECHO}, modelName="first")
    broken = make_archive(tmp_path / "m.mar", {"handler.py": "import absent_package"})
    if content is None:
        broken.write_text("no zip")
    async with serving(tmp_path, gate) as registry:
        await registry.start(startup("first.mar", "m.mar"))
        with pytest.raises(LoadFailed):
            await registry.load("m")
        assert not registry.ready()
        make_archive(broken, {"handler.py": ECHO})
        if content is None:
            await registry.load("m")
        else:
            version = await registry.register("m.mar", workers=0)
            assert not registry.ready()
            await registry.scale(version, 1, 1)
        assert registry.ready()


async def test_a_new_default_without_workers_is_missed(tmp_path: Path, gate: Gate) -> None:
    make_archive(tmp_path / "one.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "two.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path, gate) as registry:
        await registry.start(startup("one.mar"))
        version = await registry.register("two.mar", workers=0)
        assert registry.ready()
        registry.set_default("m", "2.0")
        assert not registry.ready()
        await registry.scale(version, 1, 1)
        assert registry.ready()
