"""Which of several start-up archives with the same name and version serves.

It does not depend on which is opened first: among those that could be opened, the configured
default comes first, then the order of the configuration decides. The others are entered as failed,
under a name or version that is free, so that the index shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from kserve_torch.errors import Conflict, NotReady, ServingError
from kserve_torch.models.version import ModelVersion
from kserve_torch.redact import redacted

if TYPE_CHECKING:
    from kserve_torch.settings import StartupModel

Place = tuple[str, str]


def stem_of(model: StartupModel) -> str:
    """The name of a model that neither the configuration nor an archive names."""
    return Path(redacted(str(model.file))).name.split(".")[0]


def lineup(
    models: Sequence[StartupModel],
    opened: Sequence[ModelVersion],
    broken: Callable[[str | Path, str, str, ServingError], ModelVersion],
) -> list[tuple[StartupModel, ModelVersion]]:
    """The start-up models, each with the version to enter for it: its own or a stand-in.

    Args:
        models: as configured.
        opened: the version that was opened for each.
        broken: makes a stand-in from a source, a name, a version and a reason.
    """
    pairs = sorted(
        zip(models, opened, strict=True),
        key=lambda pair: (pair[1].archive is None, not pair[0].is_default),
    )
    places: dict[Place, ModelVersion] = {}
    for _, version in pairs:
        places.setdefault(_place(version), version)
    entered = []
    for model, version in pairs:
        first = places[_place(version)]
        if version is not first:
            free = next(place for place in _places(model, version) if place not in places)
            stand_in = broken(model.file, *free, _reason(version, first))
            model, version = replace(model, is_default=False), stand_in
            places[_place(version)] = version
        entered.append((model, version))
    return entered


def _place(version: ModelVersion) -> Place:
    return version.name, version.version


def _places(model: StartupModel, version: ModelVersion) -> Iterator[Place]:
    if model.version is not None:
        yield version.name, model.version
    yield stem_of(model), version.version
    for number in count(2):
        yield f"{stem_of(model)}_{number}", version.version


def _reason(version: ModelVersion, first: ModelVersion) -> ServingError:
    if version.archive is None:
        return NotReady(version.reason)
    name, number = _place(version)
    return Conflict(
        f"{version.archive.source.name}: version {number} of model {name} is another archive's, "
        f"{first.archive.source.name if first.archive else 'which cannot be read'}"
    )
