"""Both servers on the same archives with the same settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ..server import Server, free_ports
from .calls import Rpc
from .differences import ALLOWED, unexpected
from .exchange import Answer, Step, differences
from .torchserve import TorchServe

COMMON = {
    "default_workers_per_model": "1",
    "enable_model_api": "true",
    "disable_token_authorization": "true",
}


class Pair:
    """TorchServe and this server; a context manager that stops them.

    Args:
        store: the archives; each server gets a copy, for both may write into it.
        folder: for settings and logs.
        settings: lines of ``config.properties``, the same for both.
    """

    def __init__(self, store: Path, folder: Path, **settings: str) -> None:
        self._folder = folder
        self._settings = {**COMMON, **settings}
        self._stores = [shutil.copytree(store, folder / name) for name in ("theirs", "ours")]
        self._running = ExitStack()

    def __enter__(self) -> Pair:
        theirs = TorchServe(self._stores[0], self._folder, self._settings)
        self.theirs = self._running.enter_context(theirs)
        try:
            self.ours = self._running.enter_context(self._own_server())
        except BaseException:
            self._running.close()
            raise
        return self

    def _own_server(self) -> Server:
        config = self._folder / "ours.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        (self._management,) = free_ports(1)
        with _one_core():
            return Server(
                None,
                *("--model_store", str(self._stores[1]), "--ts-config", str(config)),
                env={"TS_MANAGEMENT_ADDRESS": f"http://127.0.0.1:{self._management}"},
                cwd=self._folder,
            )

    def __exit__(self, *error: object) -> None:
        self._running.close()

    def send(self, step: Step | Rpc) -> tuple[Answer, Answer]:
        """The answers of TorchServe and of this server."""
        own: Mapping[str, int] = {
            "inference": self.ours.ports["inference"],
            "management": self._management,
            "grpc_inference": self.ours.ports["native_grpc"],
            "grpc_management": self.ours.ports["management_grpc"],
        }
        return step.send(self.theirs.ports), step.send(own)

    def compare(self, step: Step | Rpc) -> None:
        """Send a step to both servers; they must differ just where `differences` says so."""
        theirs, ours = self.send(step)
        found = differences(theirs, ours)
        if wrong := unexpected(step.name, found):
            shown = "\n".join(f"{path}: {how}" for path, how in list(wrong.items())[:10])
            pytest.fail(f"{step.name}\n{shown}\ntheirs: {theirs!s:.900}\nours:   {ours!s:.900}")
        if not found and step.name in ALLOWED:
            pytest.fail(f"{step.name}: no longer differs, take it out of differences.py")


@contextmanager
def _one_core() -> Iterator[None]:
    """Processes started meanwhile compute with one thread, as TorchServe does: sums round alike."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
