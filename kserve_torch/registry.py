"""The models of one server: how requests reach them, how they come and go.

A model version is loaded beside those that serve, warmed up, and only then takes over; one that
leaves is taken out of the catalogue first and stopped after its last answer.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kserve_torch.archive import Archive, close_archive, open_archive
from kserve_torch.background import keep
from kserve_torch.catalogue import Catalogue
from kserve_torch.devices import gpu_for
from kserve_torch.emissions import Emissions
from kserve_torch.errors import (
    Forbidden,
    InvalidArchive,
    InvalidInput,
    LoadFailed,
    ModelNotFound,
    NotReady,
    ServingError,
)
from kserve_torch.events import Observers
from kserve_torch.instance import Instance, LoadOptions
from kserve_torch.messages import MAX_ROWS, NOTHING, Reply, Request, RowReply
from kserve_torch.settings.metrics_file import read_metrics_file
from kserve_torch.store import ModelStore
from kserve_torch.version import ModelVersion

if TYPE_CHECKING:
    from kserve_torch.settings import Limits, Settings, StartupModel

log = logging.getLogger(__name__)

#: Workers of one version: each is a thread with a handler of its own.
MOST_WORKERS = 256


class Registry(Catalogue):
    """The models of one server.

    Args:
        settings: what was configured.

    Raises:
        SettingError: the ``metrics_config`` file is not one.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        config = settings.metrics_config
        metrics = read_metrics_file(config) if config else ()
        self.settings = settings
        self.store = ModelStore(settings)
        self.observers = Observers()
        self.emit = self.observers.tell
        self._temporary = tempfile.TemporaryDirectory(
            prefix="kserve_torch-",
            ignore_cleanup_errors=True,  # a handler that hangs may write still
        )
        self.workdir = Path(self._temporary.name)
        self._load_options = LoadOptions(
            workdir=self.workdir,
            install_packages=settings.install_py_dep_per_model,
            limit_max_image_pixels=settings.limit_max_image_pixels,
            metrics=metrics,
        )

    # --- requests ---

    async def submit(self, request: Request) -> Reply:
        """Have a request answered; cancelling the wait withdraws it.

        Raises:
            ServingError: whatever went wrong, with its statuses.
        """
        version = self.find(request.model, request.version)
        if len(request.rows) > MAX_ROWS:
            raise InvalidInput(f"{len(request.rows)} rows in one request, over {MAX_ROWS}")
        if not request.rows:
            # A handler takes falsy data for "initialise" (CONTRACT T-25).
            return Reply(model=version.name, version=version.version, rows=())
        return await version.submit(request)

    async def stream(self, request: Request) -> AsyncGenerator[RowReply]:
        """The intermediate results of a streaming handler as they come, the final ones last."""
        emissions = Emissions()
        answering = asyncio.ensure_future(self.submit(replace(request, emit=emissions)))
        answering.add_done_callback(lambda _: emissions.end())
        try:
            while (row := await emissions.next()) is not None:
                yield row
            for row in (await answering).rows:
                yield row
        finally:
            answering.cancel()

    # --- coming and going ---

    async def start(self, models: Sequence[StartupModel]) -> None:
        """Load the start-up models, in parallel; one that fails stays, with its reason."""
        started = await asyncio.gather(*(self._start_one(model) for model in models))
        served = [(m, v) for m, v in zip(models, started, strict=True) if v is not None]
        # Of several versions the configured default answers, else the one that stands first:
        # which was loaded first is chance.
        for _, version in reversed(served):
            self.set_default(version.name, version.version)
        for model, version in served:
            if model.is_default:
                self.set_default(version.name, version.version)

    async def _start_one(self, model: StartupModel) -> ModelVersion | None:
        try:
            return await self.register(model.file, name=model.name, at_startup=True, keep=True)
        except ServingError as error:
            log.error("model %s failed to load: %s", model.name or model.file, error.message)
            return None

    async def register(
        self,
        source: str | Path,
        *,
        name: str | None = None,
        handler: str | None = None,
        workers: int | None = None,
        overrides: Mapping[str, Any] = NOTHING,
        at_startup: bool = False,
        keep: bool = False,
        replaces: bool = False,
    ) -> ModelVersion:
        """Open an archive and start it beside what is there; the first of its name is the default.

        Args:
            source: a file of the model store, a ``file:``, ``http:`` or ``https:`` URL, or a path
                that the configuration names.
            name: the name to register under instead of the archive's own.
            handler: the handler to use instead of the archive's own.
            workers: how many to start, instead of ``minWorkers``.
            overrides: limits that go before those of the archive: fields of `Limits`.
            at_startup: whether it is part of the configuration.
            keep: keep a version that fails, UNAVAILABLE, instead of removing it.
            replaces: whether it takes the place of all versions of its name, once it is ready.

        Raises:
            ServingError: `ModelNotFound`, `InvalidArchive`, `Conflict`, `LoadFailed`, ...
        """
        try:
            archive = await self._open(source, name, handler)
        except ServingError as error:
            if keep and not replaces:
                self._add_broken(name or Path(source).name.split(".")[0], error)
            raise
        version = self._version(archive, name or archive.name, overrides)
        version.loaded_at_startup = at_startup
        try:
            if replaces:
                await self._start_in_place(version)
            else:
                await self._start_beside(version, workers, keep)
        except ServingError:
            if version not in self.all():
                await self._retire(version)
            raise
        log.info("model %s %s is ready", version.name, version.version)
        return version

    async def _open(self, source: str | Path, name: str | None, handler: str | None) -> Archive:
        path = source if isinstance(source, Path) else await self.store.resolve(source)
        archive = await asyncio.to_thread(
            open_archive,
            path,
            self.workdir,
            name=name,
            handler=handler,
            default_handler=self.settings.default_service_handler,
        )
        if archive.owned:
            self.store.discard(path)
        return replace(archive, url=source) if isinstance(source, str) else archive

    async def _start_beside(self, version: ModelVersion, workers: int | None, keep: bool) -> None:
        self.add(version)
        try:
            await version.start(workers)
        except ServingError:
            if not keep:
                self.forget(version)
            raise

    async def _start_in_place(self, version: ModelVersion) -> None:
        """Start a version, then let it take the place of all others of its name."""
        others = [other for other in self.all() if other.name == version.name]
        if not others:
            self.add(version)
        try:
            await version.start()
        finally:
            # What serves is not given up for a version that cannot.
            if version.ready or not any(other.ready for other in others):
                await asyncio.gather(*map(self._retire, self.replace(version)))

    def _version(self, archive: Archive, name: str, overrides: Mapping[str, Any]) -> ModelVersion:
        number = archive.manifest.version
        limits = replace(self.settings.limits_for(name, number, archive.yaml), **overrides)
        return ModelVersion(
            name,
            number,
            archive,
            limits,
            functools.partial(self._load_instance, archive, name, limits),
            self.emit,
        )

    def _load_instance(
        self,
        archive: Archive,
        name: str,
        limits: Limits,
        index: int,
        firsts: dict[int | None, Instance],
    ) -> Instance:
        gpu_id = gpu_for(index, limits.device_type, limits.device_ids, self.settings.number_of_gpu)
        instance = Instance.load(
            archive,
            name=name,
            version=archive.manifest.version,
            gpu_id=gpu_id,
            batch_size=limits.batch_size,
            measure=self.emit,
            options=self._load_options,
            first=firsts.get(gpu_id),
        )
        instance.warm_up()
        firsts.setdefault(gpu_id, instance)
        return instance

    def _add_broken(self, name: str, error: ServingError) -> None:
        limits = self.settings.limits_for(name, "1.0", {})
        version = ModelVersion(name, "1.0", None, limits, _never, self.emit)
        version.fail(error.message)
        self.add(version)

    async def scale(self, model: str, version: str | None, minimum: int, maximum: int) -> int:
        """Change a version's number of workers; returns how many are ready.

        Raises:
            InvalidInput: more than `MOST_WORKERS`.
        """
        found = self.find(model, version)
        if minimum > MOST_WORKERS:
            raise InvalidInput(
                f"{minimum} workers are asked for, at most {MOST_WORKERS} can be had"
            )
        await found.scale(minimum, maximum)
        return len(found.workers)

    async def unregister(self, model: str, version: str | None = None) -> ModelVersion:
        """Drain a version, stop it and forget it.

        Raises:
            Forbidden: it is the default of several.
        """
        found = self.find(model, version)
        if found.is_default and len(self._models[model]) > 1:
            raise Forbidden(f"Cannot remove default version for model {model}")
        self.forget(found)
        await self._retire(found)
        return found

    async def _retire(self, version: ModelVersion) -> None:
        """Answer what a forgotten version still has to do, then stop it."""
        await version.drain()
        await version.stop(self.settings.unregister_model_timeout)
        if version.archive is not None:
            await asyncio.to_thread(close_archive, version.archive)

    # --- the repository extension ---

    async def load(self, name: str) -> ModelVersion:
        """Load, or load again, a model by its name (CONTRACT O81, O83).

        Raises:
            ModelNotFound: nothing of that name is in the model store.
            LoadFailed: it is there and cannot be served.
        """
        source = self.store.by_name(name)
        if source is None:
            present = self._defaults.get(name)
            if present is None or present.archive is None:
                raise ModelNotFound(f"Model with name {name} does not exist.")
            source = present.archive.url
        try:
            return await self.register(source, name=name, keep=True, replaces=True)
        except InvalidArchive as error:
            raise LoadFailed(error.message) from error

    def unload(self, name: str) -> asyncio.Task[None]:
        """Forget all versions of a model at once; the task ends when the last one has stopped.

        Raises:
            ModelNotFound: no such model.
        """
        leaving = self.versions(name)
        for version in leaving:
            self.forget(version)

        async def retire() -> None:
            await asyncio.gather(*map(self._retire, leaving))

        return keep(retire())

    # --- the end ---

    async def drain(self, seconds: float) -> bool:
        """Turn not ready and wait for the last answer; False if ``seconds`` were too few."""
        self.draining = True
        everything = [version.drain() for version in self.all()]
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*everything)
        except TimeoutError:
            return False
        return True

    async def close(self, seconds: float = 1.0) -> None:
        """Stop every worker and remove everything that was written."""
        ends = time.monotonic() + seconds
        for version in self.clear():
            await version.stop(max(0.0, ends - time.monotonic()))
        self.store.close()
        self._temporary.cleanup()


def _never(index: int, firsts: dict[int | None, Instance]) -> Instance:
    raise NotReady("this model could not be read")
