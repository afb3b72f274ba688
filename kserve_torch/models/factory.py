"""Makes model versions that can be started from the sources of archives."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kserve_torch.archives.archive import Archive, open_archive
from kserve_torch.archives.store import ModelStore
from kserve_torch.errors import InvalidArchive, LoadFailed, NotReady, ServingError
from kserve_torch.messages import NOTHING
from kserve_torch.models.firsts import Firsts
from kserve_torch.models.version import ModelVersion, Origin
from kserve_torch.namespace.packages import packages_of
from kserve_torch.redact import redacted
from kserve_torch.runtime.devices import gpu_for, gpus
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.loading import LoadOptions, load_instance
from kserve_torch.runtime.reasons import load_failure

if TYPE_CHECKING:
    from kserve_torch.events import Event
    from kserve_torch.settings import Limits, Settings
    from kserve_torch.settings.metrics_file import ListedMetric

log = logging.getLogger(__name__)


class VersionFactory:
    """Makes the model versions of one server.

    Args:
        workdir: where archives are unpacked.
        emit: takes every event of theirs.
        metrics: the metrics that ``metrics_config`` lists, for handlers.
    """

    def __init__(
        self,
        settings: Settings,
        store: ModelStore,
        workdir: Path,
        emit: Callable[[Event], None],
        metrics: Sequence[ListedMetric],
    ) -> None:
        self._settings = settings
        self._store = store
        self._emit = emit
        self._options = LoadOptions(
            workdir=workdir,
            install_packages=settings.install_py_dep_per_model,
            limit_max_image_pixels=settings.limit_max_image_pixels,
            metrics=metrics,
        )
        #: For each version, how many workers it has that take any GPU; in the order in which the
        #: versions were asked for, as archives are opened in parallel.
        self._turns: list[int] = []

    async def make(
        self,
        source: str | Path,
        *,
        name: str | None = None,
        handler: str | None = None,
        overrides: Mapping[str, Any] = NOTHING,
        on_all_gpus: bool = True,
    ) -> ModelVersion:
        """Open an archive; nothing of it runs before the version is started.

        Args:
            source: a file of the model store, a ``file:``, ``http:`` or ``https:`` URL, or a path
                from the configuration.
            name: the name to register under instead of the archive's own.
            handler: the handler to use instead of the archive's own.
            overrides: fields of `Limits` that take precedence over the archive's.
            on_all_gpus: whether it has a worker on each GPU if nobody says how many it has.

        Raises:
            ServingError: `ModelNotFound`, `DownloadFailed`, `InvalidArchive`, ...
        """
        turn = len(self._turns)
        self._turns.append(0)
        archive = await self._open(source, name, handler)
        name, number = name or archive.name, archive.manifest.version
        present = gpus(self._settings.number_of_gpu) if on_all_gpus else 0
        limits = self._settings.limits_for(name, number, archive.config, present)
        limits = replace(limits, **overrides)
        installs = self._options.install_packages and archive.manifest.requirements_file
        install = functools.partial(self._install, archive, name) if installs else None
        load = functools.partial(self._load, archive, name, limits, turn)
        if limits.device_type != "cpu" and not limits.device_ids:
            self._turns[turn] = max(1, limits.min_workers)
        origin = Origin(source=source, handler=handler, overrides=overrides)
        return ModelVersion(name, number, archive, limits, install, load, self._emit, origin)

    def broken(
        self, source: str | Path, name: str, number: str, error: ServingError
    ) -> ModelVersion:
        """A stand-in for a configured version that could not even be opened."""
        limits = self._settings.limits_for(name, number, {})
        origin = Origin(source=source)
        version = ModelVersion(name, number, None, limits, None, _never, self._emit, origin)
        version.fail(error.message)
        return version

    async def _open(self, source: str | Path, name: str | None, handler: str | None) -> Archive:
        path = source if isinstance(source, Path) else await self._store.resolve(source)
        try:
            return await asyncio.to_thread(
                open_archive,
                path,
                self._options.workdir,
                name=name,
                handler=handler,
                default_handler=self._settings.default_service_handler,
            )
        finally:
            self._store.discard(path)  # a downloaded file: it was unpacked, or is of no use

    def _install(self, archive: Archive, name: str) -> None:
        """Install what the archive requires, which loading it finds done.

        It may take minutes; pip has a time limit of its own.
        """
        try:
            packages_of(archive, name, self._options.workdir)
        except Exception as error:
            failure = load_failure(error, archive.root, archive.manifest)
            # The text of a LoadFailed says all; only what is behind it needs a traceback.
            unexpected = error.__cause__ if isinstance(error, LoadFailed) else error
            log.error("%s: %s", name, failure.message, exc_info=unexpected)
            raise failure from error

    def _load(
        self,
        archive: Archive,
        name: str,
        limits: Limits,
        turn: int,
        index: int,
        firsts: Firsts,
    ) -> Instance:
        wanted = limits.device_type, limits.device_ids, self._settings.number_of_gpu
        gpu_id = gpu_for(index, sum(self._turns[:turn]), *wanted)
        instance = load_instance(
            archive,
            name=name,
            gpu_id=gpu_id,
            batch_size=limits.batch_size,
            v2_rows=limits.v2_rows,
            measure=self._emit,
            options=self._options,
            first=firsts.on(gpu_id),
        )
        try:
            instance.warm_up()
        except BaseException:
            instance.close()
            raise
        instance.on_write = firsts.renew
        return instance


@contextmanager
def refusal_logged(source: str | Path) -> Iterator[None]:
    """Log why an archive cannot be opened, where only the client that wants it would be told."""
    try:
        yield
    except (InvalidArchive, LoadFailed) as error:
        log.warning("%s is not loaded: %s", redacted(str(source)), error.message)
        raise


def _never(index: int, firsts: Firsts) -> Instance:
    raise NotReady("this model could not be read")
