"""The models in stock: versions that leave are stopped after their last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from kserve_torch.archives.archive import close_archive
from kserve_torch.engine.tasks import Shared, keep
from kserve_torch.events import DefaultChanged, Event
from kserve_torch.models.catalogue import Catalogue
from kserve_torch.models.version import ModelVersion
from kserve_torch.runtime.devices import free_cache
from kserve_torch.runtime.machine import give_back_memory


class Stock(Catalogue):
    """The catalogue, and the end of what leaves it.

    Args:
        emit: takes events about it.
        stop_seconds: how long the workers of a version that has left may take to end.
    """

    def __init__(self, emit: Callable[[Event], None], stop_seconds: float) -> None:
        super().__init__()
        self.emit = emit
        self._stop_seconds = stop_seconds
        self._give_back_memory = Shared(_give_back_memory)

    def set_default(self, model: str, version: str) -> None:
        """As `Catalogue.set_default`; observers are told, as the server may be ready by it."""
        super().set_default(model, version)
        self.emit(DefaultChanged(model, version))

    def enter(self, version: ModelVersion) -> None:
        """Enter a version, in the place of one that has failed.

        Raises:
            Conflict: the version is there and has not failed.
        """
        if displaced := self.add(version):
            keep(self.retire(displaced))

    def withdraw(self, version: ModelVersion) -> None:
        """Remove a version that could not be started, and stop it in the background."""
        self.forget(version)
        keep(self.retire([version]))

    async def retire(self, versions: Iterable[ModelVersion]) -> None:
        """Drain forgotten versions, then stop them and close their archives."""
        await asyncio.gather(*map(self._retire, versions))
        await self._give_back_memory()

    async def _retire(self, version: ModelVersion) -> None:
        await version.drain()
        await version.stop(self._stop_seconds)
        if version.archive is not None:
            await asyncio.to_thread(close_archive, version.archive)


async def _give_back_memory() -> None:
    """Give back what removed versions have left; to look for it holds Python up, for all models."""
    await asyncio.to_thread(give_back_memory)
    await asyncio.to_thread(free_cache)
