"""Registering a model on a client's behalf: the parameters, and its two steps.

The names and defaults are those of TorchServe's ``POST /models`` (CONTRACT G1, G21, Y4, T-32).
First the archive is opened and entered without workers, so that clients that do not wait also learn
at once what is wrong with it; then the workers are started.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kserve_torch.archives.manifest import RUNTIMES
from kserve_torch.errors import (
    InvalidInput,
    OutOfMemory,
    PackagesFailed,
    ServerError,
    ServingError,
    UnmetRequirements,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion
    from kserve_torch.settings import Settings

#: Parameters that are fields of `Limits`, with their smallest values.
_LIMITS = {"batch_size": 1, "max_batch_delay": 0, "response_timeout": 1, "startup_timeout": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a client wants registered.

    Attributes:
        url: a file of the model store or a URL.
        name: instead of the archive's own, or None.
        handler: likewise.
        runtime: likewise; one of `RUNTIMES`.
        workers: how many to start; None leaves it to the archive and the settings.
        synchronous: whether the client waits until they are ready.
        limits: fields of `Limits` that take precedence over the archive's.
    """

    url: str
    name: str | None
    handler: str | None
    runtime: str | None
    workers: int | None
    synchronous: bool
    limits: Mapping[str, Any]

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> Registration:
        """Read parameters under TorchServe's names; values may be text or of their own type.

        Raises:
            InvalidInput: no URL, or a runtime that is not Python.
        """
        url = params.get("url")
        if not isinstance(url, str):
            raise InvalidInput("Parameter url is required.")
        runtime = str(params.get("runtime") or "").lower() or None
        if runtime not in (None, *RUNTIMES):
            raise InvalidInput(f"Invalid RuntimeType value: {params['runtime']}")
        return cls(
            url=url,
            name=str(params.get("model_name") or "") or None,
            handler=str(params.get("handler") or "") or None,
            runtime=runtime,
            workers=_whole(params.get("initial_workers"), 0),
            synchronous=str(params.get("synchronous", True)).lower() == "true",
            limits=_limits(params),
        )

    async def enter(self, registry: Registry) -> ModelVersion:
        """Open the archive and enter it into the registry, without workers.

        Raises:
            ServingError: `ModelNotFound`, `DownloadFailed`, `InvalidArchive`, `Conflict`.
        """
        version = await registry.register(
            self.url, name=self.name, handler=self.handler, workers=0, overrides=self.limits
        )
        if self.runtime is not None and version.archive is not None:
            # It has no effect, but clients that set it expect it in the description.
            manifest = replace(version.archive.manifest, runtime=self.runtime)
            version.archive = replace(version.archive, manifest=manifest)
        return version

    def workers_of(self, version: ModelVersion, settings: Settings) -> int:
        """How many workers to start: as requested, else as the archive says, else the default."""
        if self.workers is not None:
            return self.workers
        if "minWorkers" in version.config:
            return version.limits.min_workers
        return settings.default_workers_per_model

    async def start(self, registry: Registry, version: ModelVersion, workers: int) -> None:
        """Start the workers; if that fails, the version is removed again.

        Raises:
            UnmetRequirements: packages that the model needs cannot be installed.
            OutOfMemory: the model does not fit.
            ServerError: a worker did not start, or not within ``startupTimeout``.
        """
        most = max(workers, version.limits.max_workers)
        try:
            await registry.scale(version, workers, most)
        except ServingError as error:
            registry.withdraw(version)
            raise not_started(version, error) from error


def not_started(version: ModelVersion, error: ServingError) -> ServerError:
    """The error for clients that wanted workers which ``error`` kept from starting."""
    if isinstance(error, PackagesFailed):
        what = f"Custom pip package installation failed for model {version.name}"
        return UnmetRequirements(f"{what}: {error.message}")
    kind = OutOfMemory if isinstance(error, OutOfMemory) else ServerError
    label = f"model {version.name} version: {version.version}"
    return kind(f"Failed to start workers for {label}: {error.message}")


def _limits(params: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: _whole(params.get(name), least) for name, least in _LIMITS.items()}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if "max_batch_delay" in given:
        given["max_batch_delay"] /= 1000  # from milliseconds
    return given


def _whole(value: Any, least: int) -> int | None:
    """A whole number from ``least`` up, of Java's; None for all else, which TorchServe ignores."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return None
    return number if least <= number < 2**31 else None
