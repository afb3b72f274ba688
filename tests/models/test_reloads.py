"""What a model that is loaded again keeps, and where its archive comes from."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.archives.archive import Archive
from kserve_torch.errors import (
    LoadFailed,
    ModelNotFound,
    NotReady,
)
from kserve_torch.events import StateChanged
from kserve_torch.messages import Request
from kserve_torch.models import factory
from kserve_torch.models.registration import Registration
from kserve_torch.models.state import State
from kserve_torch.runtime.instance import Instance
from kserve_torch.settings.models import StartupModel
from kserve_torch.startup import startup_models

from ..makers import ECHO, make_archive
from ..waiting import until
from .serving import GATED, Gate, answer, serving

#: Says which of its functions is the handler.
TWO_HANDLERS = """
def handle(data, context):
    return data and ["standard"] * len(data)
def special(data, context):
    return data and ["special"] * len(data)
"""


def remove(path: Path) -> None:
    path.unlink()


async def test_an_archive_that_cannot_be_opened_says_so_until_it_is_loaded_or_unloaded(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "m.mar"
    async with serving(tmp_path) as registry:
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
        with pytest.raises(ModelNotFound, match="name absent"):
            await registry.load("absent")
        assert registry.names() == []
        make_archive(tmp_path / "other.mar", {"handler.py": ECHO}, modelName="other")
        await registry.load("other")
        with pytest.raises(LoadFailed, match="damaged"):
            await registry.load("m")
        assert registry.names() == ["m", "other"]
        assert not registry._reloads._by_name


@pytest.mark.parametrize("broken", [True, False])
async def test_an_unload_overtakes_a_load_whose_archive_is_being_opened(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    opens, opening = factory.open_archive, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(*args: Any, **more: Any) -> Archive:
        loop.call_soon_threadsafe(opening.set)
        while not gate.path.exists():
            time.sleep(0.005)
        return opens(*args, **more)

    async with serving(tmp_path, gate=gate) as registry:
        await registry.load("m")
        if broken:
            (tmp_path / "m.mar").write_text("no zip")
        monkeypatch.setattr(factory, "open_archive", slowly)
        load = asyncio.ensure_future(registry.load("m"))
        await opening.wait()
        gone = registry.unload("m")
        shown: list[str] = []
        registry.observers.add(lambda _: shown.extend(registry.names()), [StateChanged])
        gate.open()
        with pytest.raises(LoadFailed if broken else NotReady, match=r"damaged|was unloaded"):
            await load
        await gone
        assert registry.names() == shown == []


async def test_a_reload_takes_the_archive_from_where_it_came(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "m_v2.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path) as registry:
        await registry.register("m_v2.mar")
        assert (await registry.load("m")).version == "2.0"
        remove(tmp_path / "m_v2.mar")
        assert (await registry.load("m")).version == "1.0"
        remove(tmp_path / "m.mar")
        with pytest.raises(ModelNotFound):
            await registry.load("m")
        assert await answer(registry) == "1.0"


async def test_a_reload_leaves_versions_of_other_archives(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "m_v2.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path) as registry:
        await registry.start(startup_models(registry.settings))
        other = registry.find("m", "2.0")
        await registry.load("m")
        make_archive(tmp_path / "m.mar", {"handler.py": ECHO}, modelVersion="1.1")
        await registry.load("m")
        assert [version.version for version in registry.versions("m")] == ["1.1", "2.0"]
        assert registry.find("m", "2.0") is other
        assert other.ready
        assert await answer(registry) == "1.1"


async def test_a_reload_keeps_what_the_registration_said(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": TWO_HANDLERS})
    async with serving(tmp_path) as registry:
        wish = {"url": "m.mar", "handler": "handler:special", "batch_size": 7}
        registration = Registration.read({**wish, "initial_workers": 3})
        version = await registration.enter(registry)
        await registration.start(registry, version, 3)
        for _ in range(2):
            version = await registry.load("m")
            reply = await registry.submit(Request(id="1", model="m", rows=[{}]))
            assert reply.results == ["special"]
            assert (version.limits.batch_size, version.ready_workers) == (7, 3)


async def test_a_reload_keeps_the_number_of_workers(tmp_path: Path) -> None:
    """Those of the archive, which may be a new one, unless a client has asked for others."""

    def archive(workers: int) -> None:
        yaml = {"model-config.yaml": f"{{minWorkers: {workers}, maxWorkers: 4}}"}
        files = {"handler.py": ECHO, **yaml}
        make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")

    archive(1)
    async with serving(tmp_path) as registry:
        await registry.register("m.mar")
        archive(2)
        assert (await registry.load("m")).scaled_to == (2, 4)
        await registry.scale(registry.find("m"), 1, 3)
        assert (await registry.load("m")).scaled_to == (1, 3)
        await registry.scale(registry.find("m"), 0, 0)
        assert (await registry.load("m")).scaled_to == (1, 3)


@pytest.mark.parametrize("fewest", [0, 2])
async def test_a_reload_keeps_the_number_of_workers_that_is_asked_for_meanwhile(
    tmp_path: Path, gate: Gate, fewest: int
) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    gate.open()
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.load("m")
        remove(gate.path)
        changes: list[StateChanged] = []
        registry.observers.add(changes.append, [StateChanged])
        load = asyncio.ensure_future(registry.load("m"))
        await until(lambda: changes)
        scaling = asyncio.ensure_future(registry.scale(version, fewest, fewest))
        await until(lambda: version.scaled_to == (fewest, fewest))
        gate.open()
        # None is not kept: a model that is loaded again is to serve.
        assert (await load).ready_workers == max(1, fewest)
        # It fails if the version is replaced before its second worker has loaded.
        await asyncio.gather(scaling, return_exceptions=True)


async def test_a_reload_keeps_what_was_configured(tmp_path: Path) -> None:
    make_archive(tmp_path / "m_v1.mar", {"handler.py": ECHO})
    details = '"marName": "m_v1.mar", "minWorkers": 2, "maxWorkers": 3, "batchSize": 5'
    config = tmp_path / "config.properties"
    config.write_text(f'models={{"digits": {{"1.0": {{{details}}}}}}}\n')
    async with serving(tmp_path, "--ts-config", str(config)) as registry:
        await registry.start(startup_models(registry.settings))
        assert registry.find("digits").scaled_to == (2, 3)
        version = await registry.load("digits")
        assert (version.scaled_to, version.limits.batch_size) == ((2, 3), 5)
        await registry.unload("digits")
        version = await registry.load("digits")
        assert (version.scaled_to, version.limits.batch_size) == ((2, 3), 5)


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
    async with serving(tmp_path, gate=gate) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        version = registry.find("m")
        assert (version.state, version.statistics().hung) == (State.UNAVAILABLE, 1)
        gate.open()
        await until(lambda: version.statistics().hung == 0)
        await until(gone)
