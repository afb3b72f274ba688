"""An archive's handler as a plain callable, for the peers that are not given the archive itself."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kserve_torch.archives.archive import open_archive
from kserve_torch.archives.folders import find_archives
from kserve_torch.events import Measured
from kserve_torch.messages import Request, Verb
from kserve_torch.runtime import devices, matmul
from kserve_torch.runtime.entry import load_entry
from kserve_torch.runtime.loading import LoadOptions, context_of, namespace_of


class Handler:
    """The handler of one archive: rows in, one result per row out.

    Args:
        archive: the ``.mar`` file.

    Attributes:
        name: the model's name.
    """

    def __init__(self, archive: Path) -> None:
        # Removed with the process: it is small, and the weights may be mapped from it.
        self._workdir = tempfile.TemporaryDirectory(prefix="benchmark-")
        options = LoadOptions(workdir=Path(self._workdir.name))
        opened = open_archive(archive, options.workdir)
        matmul.install(opened.root)
        self.name = opened.name
        gpu_id = 0 if devices.gpus() else None
        if gpu_id is not None:
            devices.use_tensor_cores()
        self._context = context_of(opened, opened.name, gpu_id, 1, _forget, options)
        self._namespace = namespace_of(opened, opened.name, options)
        with self._namespace.loading():
            entry = load_entry(self._namespace, opened.manifest.handler)
            entry.initialize(self._context)
        self._handle = entry.handle

    def __call__(self, rows: Sequence[Any], verb: Verb = Verb.PREDICT) -> list[Any]:
        """Answer a batch with one call of ``handle``."""
        request = Request(id="benchmark", model=self.name, rows=rows, verb=verb)
        self._context.begin([request] * len(rows))
        results: list[Any] = self._handle(list(rows), self._context)
        return results


def _forget(measured: Measured) -> None:
    """Ignore the handler's own metrics."""


def only_handler(store: Path) -> Handler:
    """The handler of the one archive in a store."""
    (archive,) = find_archives(store)
    return Handler(archive)
