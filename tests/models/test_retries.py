"""Start-up models that failed are loaded again."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kserve_torch.archives import extract
from kserve_torch.engine import backoff
from kserve_torch.errors import LoadFailed, NotReady
from kserve_torch.events import StateChanged
from kserve_torch.messages import Request
from kserve_torch.models import retries
from kserve_torch.models.catalogue import Catalogue
from kserve_torch.models.configured import ConfiguredModels
from kserve_torch.models.registry import Registry
from kserve_torch.models.retries import keep_trying
from kserve_torch.models.state import State
from kserve_torch.models.version import ModelVersion
from kserve_torch.server import startup_models
from kserve_torch.settings import StartupModel, load_settings

from ..hosts import hosting_files
from ..makers import ECHO, make_archive
from ..threads import workers_end
from ..waiting import until
from .serving import GATED, Gate

#: Needs a file that may come later.
NEEDS = "import os\nif not os.path.exists({!r}): raise OSError('no route to the hub')\n" + ECHO


@asynccontextmanager
async def started(store: Path, *arguments: str, persistent: bool = True) -> AsyncIterator[Registry]:
    """A registry over ``store`` after its start."""
    arguments = ("--model_store", str(store), *arguments)
    async with workers_end():
        registry = Registry(load_settings(arguments, {}, "kserve_torch"))
        try:
            await registry.start(startup_models(registry.settings), persistent)
            yield registry
        finally:
            await registry.close(5.0)


def reach(hub: Path) -> None:
    """Make loads succeed from now on."""
    hub.touch()


async def ended(tries: asyncio.Task[None]) -> None:
    await asyncio.wait_for(tries, 10)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the model in the folder ``store`` needs; pauses between tries are short."""
    monkeypatch.setattr(backoff, "BACK_OFF", (0.0, 0.05))
    hub = tmp_path / "hub"
    make_archive(tmp_path / "store" / "m.mar", {"handler.py": NEEDS.format(str(hub))})
    return hub


async def test_who_needs_what_comes_later_is_ready_then(
    tmp_path: Path, hub: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path / "store") as registry:
        version = registry.find("m")
        failures, ready = asyncio.Semaphore(0), asyncio.Event()

        def changed(event: StateChanged) -> None:
            # In between the reason stays: a client is not told that it should wait a moment.
            assert event.state != "LOADING"
            (ready.set if event.state == "READY" else failures.release)()

        registry.observers.add(changed, [StateChanged])
        async with asyncio.timeout(10):
            for _ in range(2):
                await failures.acquire()
            assert version.standing == (State.UNAVAILABLE, version.reason)
            assert "no route to the hub" in version.reason
            reach(hub)
            await ready.wait()
        answer = await registry.submit(Request(id="an-id", model="m", rows=[{"data": "a"}]))
        assert answer.results == ["a"]
        assert registry.ready()
    reasons = [record for record in caplog.records if "no route" in record.getMessage()]
    assert len(reasons) > 2
    assert sum(record.exc_info is not None for record in reasons) == 1


async def test_who_fails_for_long_is_given_up(
    tmp_path: Path, hub: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"config.yaml": "maxRetryTimeoutInSec: 0", "handler.py": NEEDS.format(str(hub))}
    for number in ("1.0", "2.0"):
        file = tmp_path / "store" / f"{number}.mar"
        make_archive(file, config, configFile="config.yaml", modelName="m", modelVersion=number)
    (tmp_path / "store" / "m.mar").unlink()
    async with started(tmp_path / "store") as registry:
        for number in ("1.0", "2.0"):
            said = f"m {number} is not loaded again: it has failed for 0 s (maxRetryTimeoutInSec)"
            await until(lambda said=said: f"model {said}" in caplog.messages)
        assert {version.state for version in registry.all()} == {State.UNAVAILABLE}
        assert registry.version_of("m") == "1.0"


@pytest.mark.parametrize(("stops", "most"), [(False, 1), (True, 0)])
async def test_no_try_follows_one_that_cannot_succeed_or_the_servers_stop(
    tmp_path: Path, hub: Path, stops: bool, most: int
) -> None:
    tries = 0

    async def fail() -> None:
        nonlocal tries
        tries += 1
        raise NotReady("it was unloaded")

    async with started(tmp_path / "store", persistent=False) as registry:
        version = registry.find("m")
        registry.draining = stops
        await ended(asyncio.create_task(keep_trying(registry, version, fail)))
        assert tries == most


async def test_who_is_removed_or_loaded_by_others_is_left_alone(tmp_path: Path, hub: Path) -> None:
    async with started(tmp_path / "store", persistent=False) as registry:
        tries = asyncio.create_task(keep_trying(registry, registry.find("m")))
        reach(hub)
        await registry.load("m")
        await ended(tries)
        tries = asyncio.create_task(keep_trying(registry, registry.find("m")))
        await registry.unload("m")
        await ended(tries)
        assert registry.all() == []


async def test_who_is_scaled_meanwhile_keeps_its_workers(tmp_path: Path, hub: Path) -> None:
    async with started(tmp_path / "store", persistent=False) as registry:
        version = registry.find("m")
        tries = asyncio.create_task(keep_trying(registry, version))
        reach(hub)
        assert await registry.scale(version, 2, 2) == 2
        await ended(tries)
        assert version.scaled_to == (2, 2)


async def test_a_try_of_somebody_else_that_fails_is_not_the_last_one(
    tmp_path: Path, hub: Path
) -> None:
    async with started(tmp_path / "store") as registry:
        failed = registry.find("m")
        with pytest.raises(LoadFailed):
            await registry.load("m")
        found = registry.find("m")
        assert found is not failed
        ready = asyncio.Event()

        def changed(event: StateChanged) -> None:
            if event.state == "READY":
                ready.set()

        registry.observers.add(changed, [StateChanged])
        reach(hub)
        await asyncio.wait_for(ready.wait(), 10)
        assert found.ready


async def test_while_somebody_else_tries_there_is_a_pause(tmp_path: Path, hub: Path) -> None:
    slow = f"import os, time\nwhile not os.path.exists({str(hub)!r}): time.sleep(0.01)\nbroken"
    async with started(tmp_path / "store", persistent=False) as registry:
        catalogue, version = Catalogue(), registry.find("m")
        catalogue.add(version)
        assert version.archive is not None
        (version.archive.root / "handler.py").write_text(slow)
        other = asyncio.create_task(version.scale(1, 1))
        tries = asyncio.create_task(keep_trying(catalogue, version))
        assert await asyncio.wait([tries], timeout=0.3) == (set(), {tries})
        assert version.state is State.LOADING
        reach(hub)
        with pytest.raises(LoadFailed):
            await other
        (version.archive.root / "handler.py").write_text(ECHO)
        await ended(tries)
        assert version.ready


@pytest.mark.parametrize("named", [False, True])
async def test_who_is_ready_late_takes_the_place_of_a_default_that_cannot_load(
    tmp_path: Path, hub: Path, named: bool
) -> None:
    """As it would have if it had been ready at once; not if the configuration names the other."""
    make_archive(tmp_path / "store" / "m.mar", {"handler.py": "broken"})
    files = {"handler.py": NEEDS.format(str(hub))}
    make_archive(tmp_path / "store" / "n.mar", files, modelName="m", modelVersion="2.0")
    models = [
        StartupModel(name="m", file="m.mar", is_default=named),
        StartupModel(name="m", file="n.mar", version="2.0"),
    ]
    async with workers_end():
        registry = Registry(load_settings(["--model_store", str(tmp_path / "store")], {}, "x"))
        await registry.start(models, persistent=True)
        assert registry.version_of("m") == "1.0"
        reach(hub)
        late = registry.find("m", "2.0")
        await until(lambda: late.ready)
        await until(lambda: named or registry.ready())
        assert registry.version_of("m") == ("1.0" if named else "2.0")
        assert registry.ready() is not named
        await registry.close(5.0)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """The URL of the folder ``remote`` over HTTP; what is not in it is a 404."""
    folder = tmp_path / "remote"
    folder.mkdir()
    with hosting_files(folder) as url:
        yield url


async def test_an_archive_that_could_not_be_downloaded_is_asked_for_again(
    tmp_path: Path, hub: Path, host: str
) -> None:
    """It may have another name and version than the stand-in, and need tries of its own."""
    url = f"{host}/download.mar"
    async with started(tmp_path / "store", "--load_models", f"{url},m.mar") as registry:
        assert registry.names() == ["download", "m"]
        reach(hub)
        await until(lambda: registry.find("m").ready)
        assert not registry.ready()
        late = tmp_path / "late"
        files = {"handler.py": NEEDS.format(str(late))}
        made = make_archive(tmp_path / "late.mar", files, modelName="digits", modelVersion="2.0")
        made.rename(tmp_path / "remote" / "download.mar")
        await until(lambda: registry.present("digits") is not None)
        version = registry.find("digits", "2.0")
        await until(lambda: "no route to the hub" in version.reason)
        assert registry.present("download") is None
        assert not list(registry.workdir.glob("downloads/*"))
        assert not registry.ready()
        reach(late)
        await until(registry.ready)
        assert version.ready


async def test_an_archive_that_did_not_fit_on_the_disk_is_unpacked_again(
    tmp_path: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*folders: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reach(hub)
    with monkeypatch.context() as patch:
        patch.setattr(extract, "_write", full)
        async with started(tmp_path / "store") as registry:
            assert registry.find("m").reason == "m.mar: cannot be unpacked: No space left on device"
            patch.undo()
            await until(registry.ready)


@pytest.mark.parametrize(("named", "default"), [(True, "1.0"), (False, "2.0")])
async def test_a_default_that_is_downloaded_late_is_the_default_all_the_same(
    tmp_path: Path, hub: Path, host: str, named: bool, default: str
) -> None:
    files = {"handler.py": ECHO}
    made = make_archive(tmp_path / "store" / "n.mar", files, modelName="m", modelVersion="2.0")
    models = [
        StartupModel(name="m", file=f"{host}/m.mar", version="1.0", is_default=named),
        StartupModel(name="m", file=made.name, version="2.0"),
    ]
    async with workers_end():
        registry = Registry(load_settings(["--model_store", str(made.parent)], {}, "x"))
        await registry.start(models, persistent=True)
        make_archive(tmp_path / "remote" / "m.mar", files)
        await until(lambda: registry.find("m", "1.0").ready)
        assert registry.ready()
        assert registry.find("m").version == default
        await registry.close(5.0)


async def test_what_is_unloaded_while_it_is_downloaded_again_stays_away(
    tmp_path: Path, hub: Path, host: str
) -> None:
    arguments = ("--load_models", f"{host}/m.mar")
    async with started(tmp_path / "store", *arguments, persistent=False) as registry:
        stand_in = registry.find("m")
        make_archive(tmp_path / "remote" / "m.mar", {"handler.py": ECHO})
        model = StartupModel(name=None, file=f"{host}/m.mar")
        fetching = asyncio.create_task(registry._configured._fetch_again(model, stand_in))
        await asyncio.sleep(0)
        await registry.unload("m")
        await ended(fetching)
        assert registry.all() == []
        await until(lambda: not list(registry.workdir.glob("models/*")))


async def test_what_cannot_be_read_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[ModelVersion] = []

    async def note(self: ConfiguredModels, version: ModelVersion) -> None:
        tried.append(version)

    monkeypatch.setattr(ConfiguredModels, "_try_again", note)
    (tmp_path / "torn.mar").write_bytes(b"no zip")
    async with started(tmp_path) as registry:
        await asyncio.sleep(0)
        assert {version.state for version in registry.all()} == {State.UNAVAILABLE}
        assert tried == []


async def test_what_hangs_is_tried_again_once_its_thread_has_ended(
    tmp_path: Path, hub: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class Counted(backoff.BackOff):
        def next(self, now: float) -> float | None:
            pauses.append(now)
            return super().next(now)

    monkeypatch.setattr(retries, "BackOff", Counted)
    files = {**gate.guards(GATED), "c.yaml": "startupTimeout: 0.2"}
    make_archive(tmp_path / "slow" / "m.mar", files, configFile="c.yaml")
    async with started(tmp_path / "slow") as registry:
        version = registry.find("m")
        await until(lambda: len(pauses) > 4)
        assert (version.state, version.hung, version.workers) == (State.UNAVAILABLE, 1, [])
        gate.open()
        await until(lambda: version.ready)
        assert registry.ready()


async def test_who_fails_does_not_wait_for_those_that_load(
    tmp_path: Path, hub: Path, gate: Gate, host: str
) -> None:
    slow = gate.guards(GATED)
    make_archive(tmp_path / "store" / "slow.mar", slow, modelName="n", modelVersion="2.0")
    models = [
        StartupModel(name=None, file="m.mar"),
        StartupModel(name="n", file=f"{host}/n.mar", version="1.0", is_default=True),
        StartupModel(name=None, file="slow.mar"),
    ]
    settings = load_settings(["--model_store", str(tmp_path / "store")], {}, "x")
    async with workers_end():
        registry = Registry(settings)
        starting = asyncio.ensure_future(registry.start(models, persistent=True))
        await until(lambda: registry.names() and registry.find("m").reason)
        reach(hub)
        make_archive(tmp_path / "remote" / "n.mar", {"handler.py": ECHO})
        await until(lambda: registry.find("m").ready and registry.find("n").ready)
        gate.open()
        await starting
        assert registry.find("n", "2.0").ready
        assert registry.find("n").version == "1.0"
        await registry.close(5.0)
