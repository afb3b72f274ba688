"""Which models count for the server's readiness."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kserve_torch.errors import (
    LoadFailed,
)
from kserve_torch.events import WorkerChanged
from kserve_torch.models.state import State

from ..makers import ECHO, make_archive
from ..waiting import until
from .serving import GATED, Gate, serving, startup


async def test_while_its_first_worker_starts_a_registered_model_is_loading(
    tmp_path: Path, gate: Gate
) -> None:
    make_archive(tmp_path / "m.mar", gate.guards(GATED))
    async with serving(tmp_path, gate=gate) as registry:
        version = await registry.register("m.mar", workers=0)
        assert version.standing == (State.UNAVAILABLE, "no worker is ready")
        scaling = asyncio.ensure_future(registry.scale(version, 1, 1))
        await until(lambda: version.workers)
        assert version.standing == (State.LOADING, "no worker is ready")
        gate.open()
        await scaling
        assert version.standing == (State.READY, "")


async def test_requests_wait_for_workers_as_soon_as_they_are_to_be_started(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path, "--install_py_dep_per_model", "true") as registry:
        version = await registry.register("m.mar", workers=0)
        scaling = asyncio.create_task(version.scale(1, 1))
        await asyncio.sleep(0)
        version.require_ready()
        await scaling


def make_first_and_later(folder: Path, *, later: str = "import absent_package") -> None:
    """Archives of a model that loads, and of one with the handler ``later``."""
    make_archive(folder / "first.mar", {"handler.py": ECHO}, modelName="first")
    make_archive(folder / "later.mar", {"handler.py": later}, modelName="later")


async def test_a_model_that_comes_later_counts_once_it_has_been_ready(tmp_path: Path) -> None:
    make_first_and_later(tmp_path)
    async with serving(tmp_path) as registry:
        with pytest.raises(LoadFailed):
            await registry.load("later")
        assert not registry.ready()
        await registry.start(startup("first.mar"))
        assert registry.ready()
        with pytest.raises(LoadFailed):  # nor with another try, which takes the first one's place
            await registry.load("later")
        assert registry.ready()
        assert registry.find("later").state is State.UNAVAILABLE
        make_first_and_later(tmp_path, later=ECHO)
        await registry.load("later")
        assert registry.ready()
        await registry.scale(registry.find("later"), 0, 0)
        assert not registry.ready()


async def test_a_model_that_is_registered_counts_once_a_worker_has_been_ready(
    tmp_path: Path,
) -> None:
    make_first_and_later(tmp_path)
    async with serving(tmp_path) as registry:
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


async def test_who_is_told_of_the_first_worker_finds_the_server_ready(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar", workers=0)
        found: list[bool] = []
        registry.observers.add(lambda _: found.append(registry.ready()), [WorkerChanged])
        await registry.scale(version, 1, 1)
        assert found == [True]


async def test_a_new_default_without_workers_is_missed(tmp_path: Path) -> None:
    make_archive(tmp_path / "one.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "two.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path) as registry:
        await registry.start(startup("one.mar"))
        version = await registry.register("two.mar", workers=0)
        assert registry.ready()
        registry.set_default("m", "2.0")
        assert not registry.ready()
        await registry.scale(version, 1, 1)
        assert registry.ready()


async def test_so_is_one_that_inherits_from_a_default_that_is_removed(tmp_path: Path) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": ECHO})
    make_archive(tmp_path / "m2.mar", {"handler.py": ECHO}, modelVersion="2.0")
    make_archive(tmp_path / "other.mar", {"handler.py": ECHO}, modelName="other")
    async with serving(tmp_path) as registry:
        await registry.register("other.mar")
        first = await registry.register("m.mar")
        second = await registry.register("m2.mar", workers=0)
        registry.withdraw(first)  # as what stands for an archive that can be downloaded at last
        assert registry.find("m") is second
        assert not registry.ready()
        await registry.scale(second, 1, 1)
        assert registry.ready()
