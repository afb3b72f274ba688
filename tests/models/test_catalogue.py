"""Models that are loaded at start: their names, and what takes whose place."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.archives.archive import Archive
from kserve_torch.errors import (
    LoadFailed,
    ModelNotFound,
    NotReady,
)
from kserve_torch.messages import Request
from kserve_torch.models import factory
from kserve_torch.models.registry import Registry
from kserve_torch.models.state import State
from kserve_torch.settings import load_settings
from kserve_torch.settings.models import StartupModel
from kserve_torch.startup import startup_models

from ..makers import ECHO, make_archive, write
from ..waiting import until
from .serving import GATED, Gate, answer, serving, startup


async def test_a_start_up_model_may_be_unloaded_while_others_load(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "quick.mar", {"handler.py": ECHO}, modelName="quick")
    slow = gate.guards(GATED)
    make_archive(tmp_path / "slow.mar", slow, modelName="slow")
    async with serving(tmp_path, gate=gate) as registry:
        models = [StartupModel(name=None, file=f"{name}.mar") for name in ("quick", "slow")]
        starting = asyncio.ensure_future(registry.start(models))
        await until(lambda: any(version.ready for version in registry.all()))
        await registry.unload("quick")
        gate.open()
        await starting
        assert registry.names() == ["slow"]
        assert registry.ready()


async def test_a_configured_default_that_fails_is_not_replaced_by_another_version(
    tmp_path: Path,
) -> None:
    make_archive(tmp_path / "one.mar", {"handler.py": "import absent_package"})
    make_archive(tmp_path / "two.mar", {"handler.py": ECHO}, modelVersion="2.0")
    make_archive(tmp_path / "torn.mar", {}, modelVersion="3.0").write_bytes(b"no zip")
    for default, number in (("one.mar", "1.0"), ("torn.mar", "3.0")):
        async with serving(tmp_path) as registry:
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


@pytest.mark.parametrize("slow", ["m_one.mar", "m_two.mar"])
async def test_of_two_archives_with_one_name_and_version_the_first_serves_and_the_other_is_shown(
    tmp_path: Path, slow: str, monkeypatch: pytest.MonkeyPatch
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
    async with serving(tmp_path) as registry:
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


async def test_of_two_snapshot_entries_with_one_version_the_default_serves(tmp_path: Path) -> None:
    named(tmp_path / "a.mar")
    named(tmp_path / "b.mar")
    for default, first, other in (("b.mar", "b.mar", "a.mar"), ("a.mar", "a.mar", "m")):
        models = [
            StartupModel(name="m", file=file, version=version, is_default=file == default)
            for file, version in (("a.mar", "1.0"), ("b.mar", "2.0"))
        ]
        async with serving(tmp_path) as registry:
            await registry.start(models)
            assert await said(registry) == [first]
            [failed] = [v for v in registry.all() if v.state is State.UNAVAILABLE]
            # The place that its entry gives it, unless that is the other's.
            assert (failed.name, failed.version) == (other, "1.0" if other == "a.mar" else "2.0")


async def test_what_cannot_be_read_takes_no_place_from_what_can(tmp_path: Path) -> None:
    (tmp_path / "m.mar").write_bytes(b"no zip")
    named(tmp_path / "n.mar")
    async with serving(tmp_path) as registry:
        await registry.start(startup("m.mar", "n.mar"))
        assert await said(registry) == ["n.mar"]
        assert "damaged" in registry.find("m.mar").reason


async def test_a_start_up_model_without_a_name_shows_no_secrets_of_its_url(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as registry:
        await registry.start(startup("s3://me:secret@bucket/m?token=secret"))
        assert registry.names() == ["m"]
    said = "model s3://bucket/m failed to load: Model not found at: m"
    assert said in [record.getMessage() for record in caplog.records]


async def test_a_start_up_model_that_fails_is_logged_with_its_name_and_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as registry:
        await registry.start([StartupModel(name="m", file="absent.mar", version="2.0")])
    assert "model m 2.0 failed to load: Model not found at: absent.mar" in caplog.messages


async def test_a_start_up_model_leaves_alone_what_a_client_was_quicker_to_register(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named(tmp_path / "one.mar")
    named(tmp_path / "two.mar")
    async with serving(tmp_path) as registry:
        await registry.register("one.mar")
        await registry.start(startup("two.mar"))
        assert await said(registry) == ["one.mar"]
        assert len(registry.all()) == 1
        assert registry.ready()
    assert "model two.mar failed to load: Model version 1.0 is already registered" in caplog.text


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
    tmp_path: Path,
) -> None:
    (tmp_path / "m_v1.mar").write_bytes(b"no zip")
    async with serving(tmp_path) as registry:
        await registry.start([StartupModel(name="m", file="m_v1.mar")])
        assert registry.find("m").state is State.UNAVAILABLE
        make_archive(tmp_path / "m_v1.mar", {"handler.py": ECHO})
        assert (await registry.load("m")).ready


async def test_a_start_up_model_stays_one_when_it_is_loaded_again(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "late.mar", {"handler.py": ECHO}, modelName="late")
    async with serving(tmp_path) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        await registry.unload("m")
        assert (await registry.load("m")).loaded_at_startup
        assert not (await registry.load("late")).loaded_at_startup


async def test_links_that_were_there_at_the_start_are_followed(tmp_path: Path) -> None:
    """KServe's storage initializer links what ``file://`` names."""
    (tmp_path / "store").mkdir()
    for name in ("m", "later"):
        make_archive(tmp_path / f"{name}.mar", {"handler.py": ECHO}, modelName=name)
    (tmp_path / "store/m.mar").symlink_to(tmp_path / "m.mar")
    async with serving(tmp_path / "store") as registry:
        await registry.start(startup_models(registry.settings))
        assert await answer(registry) == "1.0"
        await registry.load("m")
        await registry.unload("m")
        await registry.load("m")
        assert await answer(registry) == "1.0"
        (tmp_path / "store/later.mar").symlink_to(tmp_path / "later.mar")
        with pytest.raises(ModelNotFound):
            await registry.register("later.mar")


@pytest.mark.parametrize("content", ["import absent_package", None])
async def test_a_configured_model_that_fails_again_when_it_is_loaded_is_still_missing(
    tmp_path: Path, content: str | None
) -> None:
    make_archive(tmp_path / "first.mar", {"handler.py": ECHO}, modelName="first")
    broken = make_archive(tmp_path / "m.mar", {"handler.py": "import absent_package"})
    if content is None:
        broken.write_text("no zip")
    async with serving(tmp_path) as registry:
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
