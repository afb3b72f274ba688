"""Registrations that fail late, and what their archives require."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kserve_torch.errors import (
    NotReady,
    PackagesFailed,
    ServerError,
    UnmetRequirements,
)
from kserve_torch.models import factory
from kserve_torch.models.registration import Registration
from kserve_torch.models.state import State
from kserve_torch.runtime import loading

from ..makers import ECHO, make_archive
from ..waiting import until
from .serving import GATED, Gate, answer, serving, startup

#: Likewise, and fails then.
GATED_AND_BROKEN = GATED.replace("    return data", "        raise OSError('bad weights')")


async def test_a_registration_that_fails_late_leaves_the_version_that_came_meanwhile(
    tmp_path: Path, gate: Gate
) -> None:
    broken = gate.guards(GATED_AND_BROKEN)
    make_archive(tmp_path / "one.mar", broken)
    make_archive(tmp_path / "two.mar", {"handler.py": ECHO}, modelVersion="2.0")
    async with serving(tmp_path, gate=gate) as registry:
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
    async with serving(tmp_path, gate=gate) as registry:
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


async def test_what_an_archive_requires_is_installed_before_a_start_has_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    for module in (factory, loading):
        monkeypatch.setattr(
            module, "packages_of", lambda *_: threads.append(threading.current_thread().name)
        )
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, "--install_py_dep_per_model", "true") as registry:
        await registry.register("m.mar")
    before, meanwhile = threads
    assert "worker" not in before
    assert "worker" in meanwhile


async def test_what_cannot_be_installed_is_the_reason_why_no_worker_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/tmp/packages")

    monkeypatch.setattr(factory, "packages_of", full)
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, "--install_py_dep_per_model", "true") as registry:
        await registry.start(startup("m.mar"))
        version = registry.find("m")
        assert version.state is State.UNAVAILABLE
        assert "No space left on device" in version.reason
        assert version.workers == []


async def test_a_registration_installs_nothing_before_workers_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def absent(*_: object) -> None:
        raise PackagesFailed("no package absent")

    monkeypatch.setattr(factory, "packages_of", absent)
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, "--install_py_dep_per_model", "true") as registry:
        wish = Registration.read({"url": "m.mar"})
        version = await wish.enter(registry)
        with pytest.raises(UnmetRequirements, match="no package absent"):
            await wish.start(registry, version, 1)
        assert registry.names() == []
    assert "m: no package absent" in caplog.messages


async def test_what_is_unregistered_while_its_packages_are_installed_starts_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        begun.set()
        done.wait()

    monkeypatch.setattr(factory, "packages_of", slow)
    make_requiring(tmp_path / "m.mar")
    async with serving(tmp_path, "--install_py_dep_per_model", "true") as registry:
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
