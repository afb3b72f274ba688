"""TorchServe's management operations, for every protocol that offers them (CONTRACT G1-G6, G20).

An operation returns what to tell the client, or raises. Work that the client does not wait for goes
on in the background, and its failure is logged.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kserve_torch.engine.background import keep, log_failure, to_the_end
from kserve_torch.errors import (
    NOT_ALLOWED,
    InvalidInput,
    LoadFailed,
    MethodNotAllowed,
    ModelNotFound,
    OutOfMemory,
    RequestTimeout,
    VersionNotFound,
)
from kserve_torch.models import describe
from kserve_torch.models.registration import not_started
from kserve_torch.settings.limits import MOST_WORKERS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from kserve_torch.models.registration import Registration
    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion
    from kserve_torch.settings import Settings

log = logging.getLogger(__name__)

#: Stands for all versions, in the place of one.
ALL = "all"
_NO_MODEL_API = "Registering and unregistering need enable_model_api=true."


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an operation.

    Attributes:
        text: TorchServe's status text.
        http: 200 for done, 202 for under way, 206 for done in part.
    """

    text: str
    http: int = 200


def find(registry: Registry, model: str, version: str | None = None) -> ModelVersion:
    """A version of a model, the default one for None; the error texts are TorchServe's (N22).

    Raises:
        ModelNotFound: no such model.
        VersionNotFound: the model has no such version.
    """
    try:
        return registry.find(model, version)
    except VersionNotFound:
        raise
    except ModelNotFound:
        raise ModelNotFound(f"Model not found: {model}") from None


class Manager:
    """Describes and changes the models of a registry on behalf of clients.

    Args:
        registry: the models.
        settings: whether models may be registered, and how long to wait for one to leave.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings

    async def describe(
        self, model: str, version: str | None = None, customized: bool = False
    ) -> list[dict[str, Any]]:
        """One element per version: the default one for None, every one for ``all`` (CONTRACT G3).

        Args:
            model: the registered name.
            version: which version.
            customized: whether to ask the handlers too (CONTRACT E4).

        Raises:
            ModelNotFound: no such model, or no such version of it.
            ServingError: a handler could not describe itself.
        """
        found = [find(self._registry, model, None if version == ALL else version)]
        if version == ALL:
            found = self._registry.versions(model)
        elements = [describe.model_version(one) for one in found]
        if not customized:
            return elements
        return [
            {**element, "customizedMetadata": await _metadata(one)}
            for element, one in zip(elements, found, strict=True)
        ]

    async def register(self, registration: Registration) -> Outcome:
        """Register a model, or a further version of one (CONTRACT G1).

        Raises:
            MethodNotAllowed: the model API is off.
            InvalidInput: more workers than `MOST_WORKERS` are asked for.
            ServingError: what is wrong with the archive, or a worker that did not start.
        """
        self.check_model_api()
        _check_workers(registration.workers or 0)
        return await to_the_end(self._register(registration))

    async def _register(self, registration: Registration) -> Outcome:
        version = await registration.enter(self._registry)
        workers = registration.workers_of(version, self._settings)
        if not workers:
            # Not even on demand: a client that asks for none will say when to start some.
            await self._registry.scale(version, 0, 0)
        else:
            starting = registration.start(self._registry, version, workers)
            if not registration.synchronous:
                return self._later(starting)
            await starting
        label = f'Model "{version.name}" Version: {version.version}'
        text = f"{label} registered with {workers} initial workers"
        if not workers:
            text += ". Use scale workers API to add workers for the model."
        return Outcome(text)

    async def scale(
        self,
        model: str,
        version: str | None,
        fewest: int,
        most: int,
        synchronous: bool = False,
    ) -> Outcome:
        """Change a version's number of workers (CONTRACT G2).

        Raises:
            InvalidInput: the bounds cannot be met.
            ModelNotFound: no such model, or no such version of it.
            UnmetRequirements: packages that the model needs cannot be installed.
            OutOfMemory: the model does not fit.
            ServerError: a worker did not start.
            NotReady: one was not ready in time, or the version is leaving.
        """
        if fewest < 0:
            raise InvalidInput(f"min_worker: {fewest} is negative")
        if most < fewest:
            raise InvalidInput("max_worker cannot be less than min_worker.")
        _check_workers(fewest)  # now, so that also those are told who do not wait
        found = find(self._registry, model, version)
        scaling = self._scaled(found, fewest, most)
        if not synchronous:
            return self._later(scaling)
        ready = await to_the_end(scaling)
        fewest = min(fewest, found.scaled_to[0])  # models with sequenceBatching have one at most
        if ready < fewest:
            return Outcome("Workers scaling in progress...", 206)
        text = f"Workers scaled to {fewest} for model: {model}"
        return Outcome(text if version is None else f"{text}, version: {version}")

    async def _scaled(self, version: ModelVersion, fewest: int, most: int) -> int:
        if not fewest:
            # TorchServe keeps the workers that there are, up to the maximum. With a minimum of 0,
            # idle ones would stop, and nobody could be served any more.
            fewest = min(version.scaled_to[0], most)
        try:
            return await self._registry.scale(version, fewest, most)
        except (LoadFailed, OutOfMemory) as error:
            raise not_started(version, error) from error

    def set_default(self, model: str, version: str) -> Outcome:
        """Make a version the default (CONTRACT G6).

        Raises:
            ModelNotFound: no such model, or no such version of it.
        """
        find(self._registry, model, version)
        self._registry.set_default(model, version)
        log.info("model %s answers with version %s by default", model, version)
        text = f'Default version successfully updated for model "{model}" to "{version}"'
        return Outcome(text)

    async def unregister(self, model: str, version: str | None = None) -> Outcome:
        """Drain a version and remove it (CONTRACT G4).

        Raises:
            MethodNotAllowed: the model API is off.
            ModelNotFound: no such model, or no such version of it.
            Forbidden: it is the default of several versions.
            RequestTimeout: requests still run after ``unregister_model_timeout``.
        """
        self.check_model_api()
        find(self._registry, model, version)
        seconds = self._settings.unregister_model_timeout
        try:
            async with asyncio.timeout(seconds):
                await to_the_end(self._registry.unregister(model, version))
        except TimeoutError:
            raise RequestTimeout(
                f"model {model} takes no more requests, but some still run after {seconds:g} s"
            ) from None
        return Outcome(f'Model "{model}" unregistered')

    def check_model_api(self) -> None:
        """Refuse unless ``enable_model_api`` is set (CONTRACT G20).

        Raises:
            MethodNotAllowed: it is not.
        """
        if not self._settings.enable_model_api:
            raise MethodNotAllowed(f"{NOT_ALLOWED} {_NO_MODEL_API}")

    def _later(self, work: Coroutine[Any, Any, Any]) -> Outcome:
        keep(work).add_done_callback(log_failure)
        return Outcome("Processing worker updates...", 202)


def _check_workers(number: int) -> None:
    if number > MOST_WORKERS:
        raise InvalidInput(f"{number} workers are asked for, at most {MOST_WORKERS} can be had")


async def _metadata(version: ModelVersion) -> dict[str, Any]:
    """The handler's own description (CONTRACT E4); empty if that is no JSON object."""
    metadata = await version.describe()
    if isinstance(metadata, dict):
        return metadata
    log.warning(
        "%s %s: the handler describes itself with %s, not with a JSON object",
        version.name,
        version.version,
        type(metadata).__name__,
    )
    return {}
