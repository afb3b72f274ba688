"""Loads archives that a test writes."""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kserve_torch.archives.archive import open_archive
from kserve_torch.events import Measured
from kserve_torch.runtime.instance import Instance
from kserve_torch.runtime.loading import LoadOptions, load_instance

from ..makers import ECHO, make_archive
from .loaded import Load


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Loads an archive with the given ``handler.py``; all instances are closed at the end."""
    loaded: list[Instance] = []

    def load_one(
        handler: str | None = ECHO,
        files: dict[str, str | bytes] | None = None,
        *,
        first: Instance | None = None,
        measured: Callable[[Measured], None] = lambda event: None,
        v2_rows: str = "tensor",
        **model: Any,
    ) -> Instance:
        own = {} if handler is None else {"handler.py": textwrap.dedent(handler)}
        model = {"modelVersion": "7", **model}
        source = make_archive(tmp_path / f"{len(loaded)}.mar", {**own, **(files or {})}, **model)
        archive = open_archive(source, tmp_path / "work")
        options = LoadOptions(workdir=tmp_path)
        instance = load_instance(
            archive,
            name="reg",
            v2_rows=v2_rows,
            measure=measured,
            options=options,
            first=first,
        )
        loaded.append(instance)
        return instance

    yield load_one
    for instance in loaded:
        instance.close()
