"""What is left in memory of workers and models that are gone."""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.errors import (
    LoadFailed,
)
from kserve_torch.messages import Request
from kserve_torch.models import stock
from kserve_torch.models.state import State
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.sharing import Weights
from kserve_torch.settings.models import StartupModel

from ..makers import ECHO, make_archive
from ..waiting import until
from .serving import Gate, serving


async def test_the_handler_of_a_worker_that_left_is_not_kept_in_memory(tmp_path: Path) -> None:
    """Though later ones took its weights."""
    files = {"handler.py": CIRCULAR, "model-config.yaml": "{minWorkers: 2, maxWorkers: 2}"}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")
    async with serving(tmp_path) as registry:
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


async def test_garbage_is_looked_for_once_for_all_models_that_leave_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time takes as long as all the models that stay have objects."""
    times: list[None] = []
    monkeypatch.setattr(stock, "give_back_memory", lambda: times.append(None))
    async with serving(tmp_path) as registry:
        await asyncio.gather(*(registry.retire([]) for _ in range(10)))
        assert 1 <= len(times) <= 2


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


@pytest.mark.parametrize("concurrent", ["", "asyncCommunication: true"])
async def test_who_shared_weights_that_another_handler_has_written_to_is_loaded_anew(
    tmp_path: Path, concurrent: str
) -> None:
    handler = SWITCHING.replace("def handle", "async def handle") if concurrent else SWITCHING
    config = f"minWorkers: 3\nmaxWorkers: 3\n{concurrent}"
    files = {"handler.py": handler, "model-config.yaml": config}
    make_archive(tmp_path / "m.mar", files, configFile="model-config.yaml")

    async def served(wanted: int) -> Any:
        request = Request(id="1", model="m", rows=[{"data": wanted}])
        return (await registry.submit(request)).results[0]

    async with serving(tmp_path) as registry:
        version = await registry.register("m.mar")
        before = {worker.number for worker in version.workers}
        assert await served(2) == 2
        await until(lambda: len(before & {worker.number for worker in version.workers}) == 1)
        await until(lambda: version.ready_workers == 3)
        for worker in version.workers:
            assert worker.instance is not None
            assert not worker.instance.weights.are_outdated
            if not concurrent:
                reply = worker.instance.run([Request(id="1", model="m", rows=[{"data": 1}])])
                assert reply[0].results == [1]
        assert version._firsts.on(None) is None


async def test_who_loads_while_another_handler_writes_to_its_weights_is_loaded_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": SWITCHING})
    async with serving(tmp_path) as registry:
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
        await until(lambda: loaded[0]._namespace.closed)  # on a thread of its own
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
    async with serving(tmp_path, gate=gate) as registry:
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
async def test_an_unloaded_model_is_not_kept_in_memory(tmp_path: Path) -> None:
    """Its handler refers to itself, as with an attribution of its own method, or micro batches."""
    make_archive(tmp_path / "m.mar", {"handler.py": CIRCULAR})
    async with serving(tmp_path) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        instance = registry.find("m").workers[0].instance
        assert instance is not None
        handler = weakref.ref(instance._entry.service)
        del instance
        await registry.unload("m")
        assert handler() is None


CIRCULAR_AND_FAILS = """
import weakref
class Handler:
    def initialize(self, context):
        from pathlib import Path
        weakref.finalize(self, Path({freed!r}).touch)
        self.own = self
        raise MemoryError
    def handle(self, data, context):
        return data
"""


@pytest.mark.usefixtures("idle")
async def test_a_model_that_fails_to_load_is_not_in_memory_when_it_is_tried_again(
    tmp_path: Path,
) -> None:
    """Its next try needs the memory, which may be that of a GPU."""
    freed = tmp_path / "freed"
    handler = CIRCULAR_AND_FAILS.format(freed=str(freed))
    make_archive(tmp_path / "m.mar", {"handler.py": handler})
    async with serving(tmp_path) as registry:
        await registry.start([StartupModel(name=None, file="m.mar")])
        assert registry.find("m").state is State.UNAVAILABLE
        assert freed.exists()


async def test_nothing_is_left_of_what_failed(tmp_path: Path) -> None:
    def names() -> set[str]:
        names = {*sys.modules, *logging.root.manager.loggerDict}
        return {name for name in names if name.startswith("kserve_torch_archive")}

    def folders() -> list[str]:  # by os.walk, which may meet what is just removed
        return [path for path, _, _ in os.walk(registry.workdir) if path.endswith("MAR-INF")]

    before = names()
    async with serving(tmp_path) as registry:
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
