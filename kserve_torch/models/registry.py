"""The models of one server: how requests reach them, and how they are loaded and removed.

A new version is loaded and warmed up beside those that serve, and only then takes over. A version
that is removed leaves the catalogue first and is stopped after its last answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kserve_torch.archives.store import ModelStore
from kserve_torch.engine.emissions import Emissions
from kserve_torch.errors import Forbidden, InvalidInput, NotReady, ServingError
from kserve_torch.events import Observers
from kserve_torch.messages import MAX_ROWS, NOTHING, Reply, Request
from kserve_torch.models.configured import ConfiguredModels
from kserve_torch.models.factory import VersionFactory, refusal_logged
from kserve_torch.models.reloads import Reloads
from kserve_torch.models.stock import Stock
from kserve_torch.models.version import ModelVersion
from kserve_torch.namespace.workdir import gather_in
from kserve_torch.scratch import Scratch
from kserve_torch.settings.metrics_file import read_metrics_file

if TYPE_CHECKING:
    from kserve_torch.settings import Settings, StartupModel

log = logging.getLogger(__name__)


class Registry(Stock):
    """The models of one server.

    Attributes:
        listed_metrics: what the ``metrics_config`` file lists.

    Raises:
        SettingError: the ``metrics_config`` file is not one.
    """

    def __init__(self, settings: Settings) -> None:
        self.observers = Observers()
        super().__init__(self.observers.tell, settings.unregister_model_timeout)
        config = settings.metrics_config
        self.listed_metrics = read_metrics_file(config) if config else []
        self.settings = settings
        self._scratch = Scratch()
        self.workdir = self._scratch.folder
        gather_in(self.workdir / "shared")
        store = ModelStore(settings, self.workdir)
        self._factory = VersionFactory(
            settings, store, self.workdir, self.emit, self.listed_metrics
        )
        self._configured = ConfiguredModels(self, store, self._factory)
        self._reloads = Reloads(self, store, self._factory, self._configured.origins)

    # --- requests ---

    async def submit(self, request: Request) -> Reply:
        """Answer a request; cancelling the wait withdraws it.

        Raises:
            ServingError: whatever went wrong.
        """
        version = self.find(request.model, request.version)
        if len(request.rows) > MAX_ROWS:
            raise InvalidInput(f"{len(request.rows)} rows in one request, over {MAX_ROWS}")
        if not request.rows:
            # A handler takes falsy data for "initialise" (CONTRACT T-25).
            version.require_ready()
            return Reply(model=version.name, version=version.version, rows=())
        return await version.submit(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[tuple[Emissions, Awaitable[Reply]]]:
        """A streaming handler's intermediate results as they come, and its reply after them."""
        emissions = Emissions()
        answering = asyncio.ensure_future(self.submit(replace(request, parts=emissions)))
        emissions.until(answering)
        try:
            yield emissions, answering
        finally:
            answering.cancel()

    # --- loading and removing ---

    async def start(self, models: Sequence[StartupModel], persistent: bool = False) -> None:
        """Load the start-up models in parallel; one that fails stays, with its reason.

        If ``persistent``, those that fail are loaded again in the background, see `retries`.
        """
        await self._configured.load(models, persistent)

    async def register(
        self,
        source: str | Path,
        *,
        name: str | None = None,
        handler: str | None = None,
        workers: int | None = None,
        overrides: Mapping[str, Any] = NOTHING,
    ) -> ModelVersion:
        """Open an archive and start it beside what is there; the first of its name is the default.

        With ``workers`` so many are started instead of ``minWorkers``; for all else see
        `VersionFactory.make`.

        Raises:
            ServingError: `ModelNotFound`, `InvalidArchive`, `Conflict`, `LoadFailed`, ...
        """
        self._check_serving()
        with refusal_logged(source):
            version = await self._factory.make(
                source, name=name, handler=handler, overrides=overrides, on_all_gpus=workers is None
            )
        try:
            self.enter(version)
            await version.start(workers)
        except ServingError:
            self.withdraw(version)
            raise
        return version

    def _check_serving(self) -> None:
        """Refuse to load what would not serve any more.

        Raises:
            NotReady: the server is being stopped.
        """
        if self.draining:
            raise NotReady("the server is being stopped")

    async def scale(self, version: ModelVersion, minimum: int, maximum: int) -> int:
        """Change a version's number of workers; returns how many are ready."""
        await version.scale(minimum, maximum)
        ready = version.ready_workers
        log.info("model %s %s: workers ready: %d", version.name, version.version, ready)
        return ready

    async def unregister(self, model: str, version: str | None = None) -> None:
        """Forget a version, drain it and stop it.

        With the last version of a model, pending loads of that model are overtaken as well.

        Raises:
            ModelNotFound: no such model, or no such version of it.
            Forbidden: it is the default of several.
        """
        found = self.find(model, version)
        if found is self.present(model) and len(self.versions(model)) > 1:
            raise Forbidden(f"Cannot remove default version for model {model}")
        self.forget(found)
        if self.present(found.name) is None:
            self._reloads.overtake(found.name)
        await self.retire([found])
        log.info("model %s %s is unregistered", found.name, found.version)

    # --- the repository extension ---

    async def load(self, name: str) -> ModelVersion:
        """Load, or load again, a model by its name (CONTRACT O81, O83).

        The present version serves until the new one is ready, and stays if that fails.

        Raises:
            ModelNotFound: none of that name was configured or is in the model store.
            LoadFailed: it is there and cannot be served.
            NotReady: it was unloaded meanwhile, or the server is being stopped.
        """
        self._check_serving()
        version = await self._reloads.load(name)
        version.loaded_at_startup = name in self._configured.origins
        return version

    def unload(self, name: str) -> asyncio.Task[None]:
        """Forget all versions of a model at once; the task ends when the last one has stopped.

        Raises:
            ModelNotFound: no such model.
        """
        return self._reloads.unload(name)

    # --- the end ---

    async def drain(self) -> None:
        """Turn not ready and wait for the last answer."""
        self.draining = True
        await asyncio.gather(*(version.drain() for version in self.all()))

    async def close(self, seconds: float = 1.0) -> None:
        """Stop every worker and remove everything that was written."""
        ends = time.monotonic() + seconds
        for version in self.clear():
            await version.stop(max(0.0, ends - time.monotonic()))
        self._scratch.close()
