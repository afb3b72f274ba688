"""The real TorchServe: found or installed, started on free ports, stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from benchmarks.peers import PEERS
from benchmarks.peers.__main__ import set_up

from ..server import free_ports

VERSION = "0.12.0"
#: The Python of an environment that has TorchServe; without it, the benchmarks' is taken.
PYTHON = "TORCHSERVE_PYTHON"
STARTS_WITHIN = 240


class Absent(Exception):
    """There is no TorchServe here, for the reason given."""


def python() -> Path:
    """The Python that runs TorchServe.

    Raises:
        Absent: it cannot be had.
    """
    if shutil.which("java") is None:
        raise Absent("TorchServe needs Java (17 or later), and there is none")
    given, peer = os.environ.get(PYTHON), PEERS["torchserve"]
    if not (given or peer.installed or set_up(peer)):
        raise Absent(f"torchserve {VERSION} cannot be installed")
    found = Path(given) if given else peer.python
    asked = [found, "-c", "import ts; print(ts.__version__)"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise Absent(f"{PYTHON}={found}: {error.strerror}") from error
    if said.stdout.strip() != VERSION:
        raise Absent(f"{found} has no torchserve {VERSION}: {said.stdout}{said.stderr[-200:]}")
    return found


class TorchServe:
    """A TorchServe process; a context manager that stops it.

    Args:
        store: its model store.
        folder: for its settings and logs.
        settings: further lines of ``config.properties``.
    """

    def __init__(self, store: Path, folder: Path, settings: Mapping[str, str]) -> None:
        names = ("inference", "management", "metrics", "grpc_inference", "grpc_management")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "torchserve.log"
        config = folder / "torchserve.properties"
        lines = {"model_store": str(store), **settings}
        for name in ("inference", "management", "metrics"):
            lines[f"{name}_address"] = f"http://127.0.0.1:{self.ports[name]}"
        for name in ("grpc_inference", "grpc_management"):
            lines[f"{name}_port"] = str(self.ports[name])
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self._folder, self._config, self._store = folder, config, store

    def __enter__(self) -> TorchServe:
        interpreter = python()
        environment = {
            **os.environ,
            "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
            "LOG_LOCATION": str(self._folder / "logs"),
            "METRICS_LOCATION": str(self._folder / "logs"),
            "TEMP": str(self._folder),
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("PYTHONPATH", None)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(interpreter, "-m", "ts.model_server", "--start", "--foreground", "--ncs"),
                    *("--model-store", self._store, "--ts-config", self._config),
                    *("--disable-token-auth", "--enable-model-api"),
                ],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self) -> None:
        """Until it is healthy: all workers of all models are there."""
        until = time.monotonic() + STARTS_WITHIN
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.monotonic() < until and self._process.poll() is None:
                if self._healthy(client):
                    return
                time.sleep(0.5)
        raise AssertionError(f"TorchServe did not start:\n{self.log[-4000:]}")

    def _healthy(self, client: httpx.Client) -> bool:
        here = "http://127.0.0.1:"
        try:
            models = client.get(f"{here}{self.ports['management']}/models").json()["models"]
            for model in models:
                url = f"{here}{self.ports['management']}/models/{model['modelName']}"
                workers = client.get(url).json()[0]["workers"]
                if not any(worker["status"] == "READY" for worker in workers):
                    return False
            return client.get(f"{here}{self.ports['inference']}/ping").status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text("utf-8", "replace")

    def stop(self) -> None:
        """End the server and its workers, which are processes of one session."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
