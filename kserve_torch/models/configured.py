"""The start-up models: those that the configuration names, or that lie in the model folder.

Which of several archives with one name and version serves does not depend on which is opened first:
among those that could be opened, the configured default comes first, then the order of the
configuration decides. The others are entered as failed, so that the index shows them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kserve_torch.archives.manifest import DEFAULT_VERSION
from kserve_torch.archives.store import ModelStore
from kserve_torch.engine.tasks import keep
from kserve_torch.errors import Conflict, NotReady, ServingError
from kserve_torch.models.factory import VersionFactory
from kserve_torch.models.retries import keep_trying, worth_another_try
from kserve_torch.models.state import State
from kserve_torch.models.stock import Stock
from kserve_torch.models.version import ModelVersion, Origin
from kserve_torch.redact import redacted

if TYPE_CHECKING:
    from kserve_torch.settings import StartupModel

log = logging.getLogger(__name__)


class ConfiguredModels:
    """Loads the start-up models.

    Attributes:
        origins: where they came from, by their names, also of those unloaded since.
    """

    def __init__(self, stock: Stock, store: ModelStore, factory: VersionFactory) -> None:
        self.origins: dict[str, Origin] = {}
        self._stock = stock
        self._store = store
        self._factory = factory
        #: Stand-ins for archives that could not be downloaded or unpacked yet, and what they stand
        #: for.
        self._to_fetch: dict[ModelVersion, StartupModel] = {}
        #: Models whose default version the configuration names.
        self._decided: set[str] = set()

    async def load(self, models: Sequence[StartupModel], persistent: bool) -> None:
        """Load them in parallel; see `Registry.start`."""
        if models:  # what is unpacked or downloaded may take minutes
            log.info("opening %s", ", ".join(map(_file, models)))
        self._store.configure(model.file for model in models if isinstance(model.file, str))
        opened = await asyncio.gather(*map(self._open, models))
        entered = self._placed(zip(models, opened, strict=True))
        if displaced := {*opened} - {version for _, version in entered}:
            keep(self._stock.retire(displaced))
        for model, version in entered:
            self._enter_configured(model, version)
        self._stock.opening = False
        await asyncio.gather(*(self._start(*each, persistent) for each in entered))
        self._choose_defaults(entered)

    async def _try_again(self, version: ModelVersion) -> None:
        """Go on loading one that has failed."""
        model = self._to_fetch.pop(version, None)
        again = None if model is None else functools.partial(self._fetch_again, model, version)
        await keep_trying(self._stock, version, again)
        self._default_to(version)

    async def _fetch_again(self, model: StartupModel, stand_in: ModelVersion) -> None:
        version = await self._factory.make(model.file, name=model.name)
        if self._stock.draining or stand_in not in self._stock:
            self._stock.withdraw(version)
            return
        self._stock.withdraw(stand_in)
        self._enter_configured(model, version)
        if model.is_default and version in self._stock:
            self._stock.set_default(version.name, version.version)
        await self._start(model, version, persistent=True)
        self._default_to(version)

    async def _open(self, model: StartupModel) -> ModelVersion:
        try:
            return await self._factory.make(model.file, name=model.name)
        except ServingError as error:
            name = model.name or _file(model).split(".")[0]
            version = model.version or DEFAULT_VERSION
            stand_in = self._factory.broken(model.file, name, version, error)
            if worth_another_try(error):
                self._to_fetch[stand_in] = model
            return stand_in

    def _placed(
        self, pairs: Iterable[tuple[StartupModel, ModelVersion]]
    ) -> list[tuple[StartupModel, ModelVersion]]:
        """The models, each with its version; or a stand-in, if another has its name and version."""
        ranked = sorted(pairs, key=lambda pair: (pair[1].archive is None, not pair[0].is_default))
        places: dict[tuple[str, str], ModelVersion] = {}
        for _, version in ranked:
            places.setdefault((version.name, version.version), version)
        placed = []
        for model, version in ranked:
            first = places[version.name, version.version]
            if version is not first:
                name, number = version.name, model.version or ""
                if not number or (name, number) in places:
                    name, number = _file(model), version.version
                reason = _why_not(version, first)
                model = replace(model, is_default=False)
                version = self._factory.broken(model.file, name, number, reason)
                places[name, number] = version
            placed.append((model, version))
        return placed

    def _enter_configured(self, model: StartupModel, version: ModelVersion) -> None:
        version.loaded_at_startup = version.needed = True
        if model.is_default or version.name not in self.origins:
            self.origins[version.name] = version.origin
        if model.is_default:
            self._decided.add(version.name)
        try:
            self._stock.enter(version)
        except Conflict as error:  # a client was quicker
            _log_failure(model, version, error)
            self._stock.withdraw(version)

    async def _start(self, model: StartupModel, version: ModelVersion, persistent: bool) -> None:
        """Start a version; if that fails and ``persistent``, go on in the background."""
        if version not in self._stock:
            return
        try:
            if version.state is State.UNAVAILABLE:
                raise NotReady(version.reason)
            await version.start()
        except ServingError as error:
            _log_failure(model, version, error)
            again = version in self._to_fetch or worth_another_try(error, version)
            if persistent and again and version in self._stock:
                keep(self._try_again(version))

    def _choose_defaults(self, entered: Iterable[tuple[StartupModel, ModelVersion]]) -> None:
        """The first version that is ready becomes the default, unless the configuration names one.

        Then that one does, even if it is not ready and only says why.
        """
        here = [(model, version) for model, version in entered if version in self._stock]
        for _, version in reversed(here):
            if version.ready and version.name not in self._decided:
                self._stock.set_default(version.name, version.version)
        for model, version in here:
            if model.is_default:
                self._stock.set_default(version.name, version.version)

    def _default_to(self, version: ModelVersion) -> None:
        """Make a version that is ready late the default in the place of one that cannot load."""
        default = self._stock.present(version.name)
        failed = default is not None and default.state is State.UNAVAILABLE
        late = version.ready and version in self._stock
        if failed and late and version.name not in self._decided:
            self._stock.set_default(version.name, version.version)


def _file(model: StartupModel) -> str:
    return Path(redacted(str(model.file))).name


def _why_not(version: ModelVersion, first: ModelVersion) -> ServingError:
    """Why a version is not served: another one has its name and number."""
    if version.archive is None:
        return NotReady(version.reason)
    other = first.archive.source.name if first.archive else "which cannot be read"
    what = f"version {version.version} of model {version.name} is another archive's, {other}"
    return Conflict(f"{version.archive.source.name}: {what}")


def _log_failure(model: StartupModel, version: ModelVersion, error: ServingError) -> None:
    shown = f"{model.name} {version.version}" if model.name else redacted(str(model.file))
    log.error("model %s failed to load: %s", shown, error.message)
