"""Which models and versions there are, and which version of each is the default.

The first version of a name becomes its default. `Catalogue.set_default` changes one reference, so
at any moment there is exactly one default.
"""

from __future__ import annotations

from collections.abc import Collection

from kserve_torch.errors import (
    Conflict,
    ModelNotFound,
    NotReady,
    ServingError,
    VersionNotFound,
)
from kserve_torch.models.state import State
from kserve_torch.models.version import ModelVersion
from kserve_torch.runtime import devices


class Catalogue:
    """Maps names and versions to `ModelVersion`; on the event loop only.

    Attributes:
        draining: whether the server is shutting down; it is not ready then.
        opening: whether start-up models are still to be fetched and opened, so that not all names
            are known.
    """

    def __init__(self) -> None:
        self.draining = False
        self.opening = False
        self._models: dict[str, dict[str, ModelVersion]] = {}
        self._defaults: dict[str, ModelVersion] = {}

    # --- questions ---

    def __contains__(self, version: ModelVersion) -> bool:
        """Whether a version is served still: clients may have removed it meanwhile."""
        return self._models.get(version.name, {}).get(version.version) is version

    def names(self) -> list[str]:
        """Names of all models, sorted, whatever their state."""
        return sorted(self._models)

    def all(self) -> list[ModelVersion]:
        """Every version of every model, sorted as `names` and `versions` are."""
        return [version for name in sorted(self._models) for version in self.versions(name)]

    def versions(self, model: str) -> list[ModelVersion]:
        """All versions of a model, sorted, 2.0 before 10.0.

        Raises:
            ModelNotFound: no such model.
            NotReady: `opening`, so one cannot say that there is no such model.
        """
        if model not in self._models:
            raise self.missing(model)
        return [self._models[model][version] for version in sorted(self._models[model], key=_order)]

    def find(self, model: str, version: str | None = None) -> ModelVersion:
        """A version of a model; its default one without a version, or with "", as gRPC says it.

        Raises:
            ModelNotFound: no such model.
            VersionNotFound: the model has no such version.
            NotReady: `opening`, so one cannot say that there is no such model.
        """
        if model not in self._models:
            raise self.missing(model)
        found = self._models[model].get(version) if version else self._defaults[model]
        if found is None:
            raise VersionNotFound(f"Model version: {version} does not exist for model: {model}")
        return found

    def missing(self, model: str) -> ServingError:
        """The error about a model that there is not, or not yet, in KServe's words."""
        if self.opening:
            return NotReady(f"Model with name {model} is not there yet: models are still loading.")
        return ModelNotFound(f"Model with name {model} does not exist.")

    def present(self, model: str) -> ModelVersion | None:
        """The default version of a model, or None if there is no such model."""
        return self._defaults.get(model)

    def serves(self, model: str) -> bool:
        """Whether some version of a model is ready."""
        return any(version.ready for version in self._models.get(model, {}).values())

    def version_of(self, model: str, version: str | None = None) -> str:
        """The version that `find` would return, as text; "" if there is none."""
        try:
            return self.find(model, version).version
        except (ModelNotFound, NotReady):
            return ""

    def is_ready(self, model: str, version: str | None = None) -> bool:
        """Whether a request to it would be served now."""
        return self.find(model, version).ready and not self.draining

    def ready(self) -> bool:
        """Server-ready: at least one model, the default version of each ready, not draining.

        A model that somebody loads while the server runs counts once it has been ready: or a broken
        archive would take all models out of service.
        """
        needed = [version for version in self._defaults.values() if version.needed]
        serves = bool(needed) and not self.draining and all(version.ready for version in needed)
        return serves and devices.all_work()

    def standing(self, version: ModelVersion) -> tuple[State, str]:
        """The same as `ModelVersion.standing`, but UNAVAILABLE while the server drains."""
        if self.draining and version.ready:
            return State.UNAVAILABLE, "the server is being stopped"
        return version.standing

    def live(self) -> bool:
        """False once only a restart helps: threads hang (DESIGN law 3), or a GPU is lost."""
        return devices.all_work() and all(version.live for version in self.all())

    # --- changes ---

    def add(self, version: ModelVersion) -> list[ModelVersion]:
        """Enter a version; returns the failed version that it replaces, if any.

        Raises:
            Conflict: the version is there and has not failed.
        """
        present = self._models.get(version.name, {}).get(version.version)
        if present is not None and present.state is not State.UNAVAILABLE:
            raise Conflict(
                f"Model version {version.version} is already registered for model {version.name}"
            )
        return self.replace(version, ())

    def forget(self, version: ModelVersion) -> None:
        """Take a version out, so that new requests no longer find it.

        If it was the default, another version becomes it, preferably one that is ready.
        """
        versions = self._models.get(version.name, {})
        if versions.get(version.version) is version:
            del versions[version.version]
        if not versions:
            self._models.pop(version.name, None)
            self._defaults.pop(version.name, None)
        elif self._defaults[version.name] is version:
            heir = max(versions.values(), key=lambda other: other.ready)
            self.set_default(heir.name, heir.version)

    def set_default(self, model: str, version: str) -> None:
        """Make a version the default of its model.

        Raises:
            ModelNotFound: no such model.
            VersionNotFound: no such version.
        """
        chosen, before = self.find(model, version), self.present(model)
        if before is not None and before.needed:
            chosen.needed = True
        self._defaults[model] = chosen

    def replace(
        self, version: ModelVersion, others: Collection[ModelVersion]
    ) -> list[ModelVersion]:
        """Enter a version in the place of others, as the default if one of those was it.

        Returns:
            Those of the others that were still there, and what had the version's place.
        """
        versions = self._models.setdefault(version.name, {})
        leaving = [
            other
            for other in versions.values()
            if other is not version and (other in others or other.version == version.version)
        ]
        for other in leaving:
            del versions[other.version]
        versions[version.version] = version
        default = self._defaults.get(version.name)
        if default is None or default in leaving:
            self.set_default(version.name, version.version)
        return leaving

    def clear(self) -> list[ModelVersion]:
        """Forget everything; returns what was there."""
        everything = self.all()
        self._models.clear()
        self._defaults.clear()
        return everything


def _order(version: str) -> list[tuple[int, str]]:
    """A sort key: of two numbers, the longer one is larger. Other texts sort anywhere."""
    return [(len(part), part) for part in version.split(".")]
