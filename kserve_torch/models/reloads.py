"""The repository extension's loads and unloads, which may overlap (CONTRACT O81-O83).

Loads of one name run one at a time, and all requests that wait share the next one: clients that
timed out ask again. Removing the model, by an unload or by a DELETE of its last version, overtakes
the loads that run or wait: the last request wins. So does a version that is registered meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from kserve_torch.archives.manifest import DEFAULT_VERSION
from kserve_torch.archives.store import ModelStore
from kserve_torch.engine.tasks import keep
from kserve_torch.errors import InvalidArchive, LoadFailed, ModelNotFound, NotReady, ServingError
from kserve_torch.models.factory import VersionFactory, refusal_logged
from kserve_torch.models.retries import keep_trying, worth_another_try
from kserve_torch.models.stock import Stock
from kserve_torch.models.version import ModelVersion, Origin

log = logging.getLogger(__name__)


class _Loads:
    """The loads of one name.

    Attributes:
        turn: held by the one that runs.
        waiting: the one that runs next, shared by all that ask meanwhile.
        wanted: the tasks that no removal has overtaken.
        under_way: how many run or wait.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting: asyncio.Task[ModelVersion] | None = None
        self.wanted: set[object] = set()
        self.under_way = 0


class Reloads:
    """Loads models by their names, and unloads them.

    Args:
        configured: the origins of the start-up models by name, also of those unloaded since.
    """

    def __init__(
        self,
        stock: Stock,
        store: ModelStore,
        factory: VersionFactory,
        configured: Mapping[str, Origin],
    ) -> None:
        self._stock = stock
        self._store = store
        self._factory = factory
        self._configured = configured
        self._by_name: dict[str, _Loads] = {}

    async def load(self, name: str) -> ModelVersion:
        """Load, or load again, a model; see `Registry.load`."""
        loads = self._by_name.setdefault(name, _Loads())
        if loads.waiting is None:
            loads.waiting = keep(self._load(name, loads))
            loads.under_way += 1
            loads.wanted.add(loads.waiting)
        return await asyncio.shield(loads.waiting)

    async def _load(self, name: str, loads: _Loads) -> ModelVersion:
        this = asyncio.current_task()
        try:
            async with loads.turn:
                if loads.waiting is this:
                    loads.waiting = None
                if this not in loads.wanted:
                    raise _unloaded(name)
                before = self._of_its_source(name)
                version = await self._made(name)
                await self._take_over(version, before, loads, this)
        except InvalidArchive as error:
            if this in loads.wanted:
                await self._enter_broken(name, error)
            raise LoadFailed(error.message) from error
        finally:
            loads.wanted.discard(this)
            loads.under_way -= 1
            if not loads.under_way:
                self._by_name.pop(name, None)  # clients choose the names
        return version

    async def _enter_broken(self, name: str, error: InvalidArchive) -> None:
        """Enter a stand-in that says why the archive cannot be opened, unless one was opened."""
        here = self._here(name)
        if all(version.archive is None for version in here):
            source = next(iter(self._sources(name)), name)  # the file may be gone by now
            broken = self._factory.broken(source, name, DEFAULT_VERSION, error)
            await self._stock.retire(self._stock.replace(broken, here))

    async def _made(self, name: str) -> ModelVersion:
        """A version from the model's origin, else from what the store has by that name.

        The overrides of its registration, and the workers that it was scaled to, are kept.
        """
        origin = self._origin(name)
        handler, overrides = origin.handler, origin.overrides
        failure = self._stock.missing(name)
        for source in self._sources(name):
            try:
                with refusal_logged(source):
                    return await self._factory.make(
                        source, name=name, handler=handler, overrides=overrides
                    )
            except ModelNotFound as error:  # the file is gone
                failure = error
        raise failure

    def _sources(self, name: str) -> list[str | Path]:
        """Where to look for a model, in this order."""
        sources = (self._origin(name).source, self._store.by_name(name))
        return [source for source in sources if source is not None]

    def _origin(self, name: str) -> Origin:
        """The origin of the default version, else of the start-up model of that name."""
        present = self._stock.present(name)
        return self._configured.get(name, Origin()) if present is None else present.origin

    async def _take_over(
        self, version: ModelVersion, before: list[ModelVersion], loads: _Loads, this: object
    ) -> None:
        """Start a version, then replace those by it that were made before of the same source."""
        stock = self._stock
        if this in loads.wanted and stock.present(version.name) is None:
            stock.add(version)
        failure: ServingError | None = None
        try:
            await version.start()
            await self._scale_like(stock.present(version.name), before, version)
        except ServingError as error:
            failure = error
        wanted = this in loads.wanted
        if not wanted:
            failure = _unloaded(version.name)
        # A version that serves is not replaced by one that failed.
        if wanted and (failure is None or not stock.serves(version.name)):
            others = stock.replace(version, before)
            if failure is not None and version.needed and worth_another_try(failure, version):
                keep(keep_trying(stock, version))  # in the place of the one that is tried now
            await stock.retire(others)
        else:
            stock.withdraw(version)
        if failure is not None:
            raise failure

    async def _scale_like(
        self, present: ModelVersion | None, before: list[ModelVersion], version: ModelVersion
    ) -> None:
        """Scale a version as the one that it replaces was scaled while it loaded."""
        if present in before and present.origin.overrides != version.origin.overrides:
            fewest, most = present.scaled_to
            if fewest:
                await version.scale(fewest, most)

    def _here(self, name: str) -> list[ModelVersion]:
        return [version for version in self._stock.all() if version.name == name]

    def _of_its_source(self, name: str) -> list[ModelVersion]:
        """The versions that `_made` makes again; those of other archives stay beside it."""
        source = self._origin(name).source
        return [version for version in self._here(name) if version.origin.source == source]

    def unload(self, name: str) -> asyncio.Task[None]:
        """Forget all versions of a model at once; see `Registry.unload`."""
        leaving = self._stock.versions(name)
        self.overtake(name)
        for version in leaving:
            self._stock.forget(version)
        log.info("model %s is unloaded", name)
        return keep(self._stock.retire(leaving))

    def overtake(self, name: str) -> None:
        """Keep loads that run or wait from bringing back a model that was removed."""
        if name in self._by_name:
            self._by_name[name].waiting = None
            self._by_name[name].wanted.clear()


def _unloaded(name: str) -> NotReady:
    return NotReady(f"Model {name} was unloaded while it was loaded")
