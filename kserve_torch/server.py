"""The process: settings to models, edges and sockets; start, drain, stop.

Start: load every start-up model, then open the ports (INTERFACE, Readiness). Stop: readiness turns
false at once, new connections are still served for ``drain_seconds``, then running requests are
finished and the process ends. A second signal, or the end of ``grace_period``, ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from kserve_torch import pidfile
from kserve_torch.accesslog import AccessLog
from kserve_torch.children import SIGNALS, Children, keep_signals_from_forks
from kserve_torch.edges import HttpServer, application, uvicorn_config
from kserve_torch.engine.tasks import give_up
from kserve_torch.events import Event, Responded, WorkerChanged
from kserve_torch.grpc.server import GrpcServer
from kserve_torch.metrics import Metrics
from kserve_torch.models.registry import Registry
from kserve_torch.process import run_until_done
from kserve_torch.settings import Settings, StartupModel, load_settings
from kserve_torch.settings.addresses import Binding
from kserve_torch.sockets import Listener
from kserve_torch.startup import (
    listening,
    startup_models,
    summary,
    warn_of_idle_limits,
    warn_of_missing_gpus,
    why_no_models,
)
from kserve_torch.tls import Identity, identity, keep_current
from kserve_torch.tokens import Tokens, tokens_for
from kserve_torch.tracing import tracing

log = logging.getLogger(__name__)

#: Tools wait for this line on standard output (CONTRACT F6).
STARTED = "Model server started."


def run(settings: Settings, imported_in: float = 0.0) -> int:
    """Serve until a signal comes; returns the exit code.

    Args:
        settings: what was configured.
        imported_in: how many seconds the imports took, for the log.

    Raises:
        SettingError: a setting cannot be met, such as a port that is taken.
    """
    return run_until_done(settings, lambda: _run(settings, imported_in))


async def _run(settings: Settings, imported_in: float) -> int:
    with pidfile.recorded() if settings.program == "torchserve" else nullcontext():
        return await Server(settings, imported_in).serve()


def serve(model_dir: str | Path, *options: str) -> int:
    """Serve a model folder from a program; returns the exit code.

    Args:
        model_dir: as ``--model_dir``.
        options: further command-line options.

    Raises:
        RuntimeError: called where signals cannot be handled, or in an event loop, as a notebook's.
        SettingError: a setting is wrong or cannot be met.
    """
    if threading.current_thread() is not threading.main_thread() or _in_event_loop():
        raise RuntimeError(
            "serve() needs the main thread, outside of any event loop: in a notebook, start "
            "'python -m kserve_torch' or use TorchModel"
        )
    settings = load_settings(["--model_dir", str(model_dir), *options], os.environ, "kserve_torch")
    before = [(number, signal.getsignal(number)) for number in SIGNALS]
    try:
        return run(settings)
    finally:
        for number, handler in before:  # uvloop leaves its own behind, which do nothing
            signal.signal(number, handler)


def _in_event_loop() -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


class Server:
    """The models and sockets of one process.

    Args:
        settings: what was configured.
        imported_in: as for `run`.
    """

    def __init__(self, settings: Settings, imported_in: float = 0.0) -> None:
        self.settings = settings
        self._imported_in = imported_in
        self.registry = Registry(settings)
        self.metrics = Metrics(settings, self.registry)
        self._access_log = AccessLog(settings)
        self.registry.observers.add(self._access_log, [Responded])
        self._tracing = tracing(os.environ)
        if self._tracing is not None:
            self.registry.observers.want_headers = True
            self.registry.observers.add(self._tracing, [Responded])
        self.grpc = GrpcServer(self.registry, settings)
        self._stopping = asyncio.Event()
        self._killed = asyncio.Event()
        self._listeners: list[Listener] = []
        self._https: dict[asyncio.Task[None], HttpServer] = {}
        self._renewals: list[asyncio.Task[None]] = []
        self._children = Children()

    async def serve(self) -> int:
        """Start, serve, drain, stop; returns the exit code."""
        self._follow_signals()
        try:
            if not await self._start():
                return 0
            for ended in await _done_before(self._stopping, *self._https):
                ended.result()  # raises the error with which a listener failed
            return await self._stop()
        finally:
            await self._close()

    # --- start ---

    async def _start(self) -> bool:
        """Load the models and open the ports; False if a signal came before they were opened."""
        began = time.monotonic()
        bindings = self.settings.bindings()
        self._listeners.extend(map(Listener, bindings))
        for binding in self.settings.grpc_bindings():
            # gRPC binds its ports after the models are loaded, and its errors give no reason.
            Listener(binding).close()
        # After the ports: another server that has them may keep its keys in the same file.
        tokens = tokens_for(self.settings)
        self._check_tls(bindings)  # before the models, which may take minutes
        models = startup_models(self.settings)
        if not self.settings.open_early:
            await self._load_models(models)
            if self._stopping.is_set():
                return False
        self.registry.opening = self.settings.open_early
        await self._open(tokens)
        if self.settings.open_early:
            await self._load_models(models)
        self.grpc.refresh()
        if not self._stopping.is_set():  # else loading was cancelled
            self._report_start(len(models), time.monotonic() - began)
            print(STARTED, file=sys.__stdout__, flush=True)  # a handler may have replaced the other
        return True

    def _check_tls(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            self._identity(binding)
        if self.settings.enable_grpc_ssl:
            identity(self.settings, self.registry.workdir)

    def _identity(self, binding: Binding) -> Identity | None:
        if binding.address.scheme != "https":
            return None
        alone = binding.settings == ("http_port",)
        return identity(self.settings, self.registry.workdir, http_port=alone)

    async def _load_models(self, models: Sequence[StartupModel]) -> None:
        warn_of_missing_gpus(self.settings)
        if not models:
            why = why_no_models(self.settings)
            log.warning("no models to load: %s; the server is live but not ready", why)
        loading = asyncio.ensure_future(self.registry.start(models, persistent=True))
        await _done_before(self._stopping, loading)
        if self._stopping.is_set():
            loading.cancel()
        else:
            await loading
            warn_of_idle_limits(self.settings, self.registry.all())

    async def _open(self, tokens: Tokens | None) -> None:
        bindings = [listener.binding for listener in self._listeners]
        app = application(self.registry, self.metrics, self.settings, tokens, bindings)
        groups: dict[Identity | None, list[socket.socket]] = {}
        for listener in self._listeners:
            listener.listen(self.settings.receive_timeout)
            groups.setdefault(self._identity(listener.binding), []).extend(listener.copies)
        for files, group in groups.items():
            config = uvicorn_config(app, self.settings, files)
            server = HttpServer(config)
            if files and config.ssl:
                self._renewals.append(asyncio.create_task(keep_current(config.ssl, files)))
            self._https[asyncio.create_task(server.serve(group))] = server
        await self.grpc.start(tokens)
        log.info("listening on %s", listening([*bindings, *self.settings.grpc_bindings()]))

    def _report_start(self, wanted: int, seconds: float) -> None:
        loaded = [version for version in self.registry.all() if version.ready]
        if loaded or wanted:
            ready = self.registry.ready()
            level = logging.INFO if ready else logging.WARNING
            text = summary(wanted, loaded, ready, seconds, self._imported_in)
            log.log(level, "%s", text)

    # --- stop ---

    def _follow_signals(self) -> None:
        loop = asyncio.get_running_loop()
        self._listen_to_signals(loop)

        def listen_again(_: Event) -> None:
            with suppress(RuntimeError):  # the loop is closed: a worker that hung has ended
                loop.call_soon_threadsafe(self._listen_to_signals, loop)

        # What a handler has loaded may have taken the signals for itself, as a Java VM does.
        self.registry.observers.add(listen_again, [WorkerChanged])
        keep_signals_from_forks()

    def _listen_to_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self._killed.set()
        self.registry.draining = True
        self._stopping.set()

    async def _stop(self) -> int:
        log.info("draining")
        self.grpc.refresh()
        drained = asyncio.ensure_future(self._drain())
        if not await _done_before(self._killed, drained, seconds=self.settings.grace_period):
            log.warning("stopped with requests in flight")
            await self.registry.close(0.0)
            self._access_log.flush()
            logging.shutdown()
            self._children.end()
            pidfile.forget()
            os._exit(1)  # a normal exit would wait for threads that still run
        return 0

    async def _drain(self) -> None:
        await asyncio.sleep(self.settings.drain_seconds)
        for server in self._https.values():
            server.should_exit = True
        give_up()
        await self.grpc.stop(self.settings.grace_period)
        await self.registry.drain()
        # uvicorn ends when the last answer has left.
        await asyncio.gather(*self._https)

    async def _close(self) -> None:
        for task in (*self._https, *self._renewals):
            task.cancel()
        await asyncio.gather(*self._https, *self._renewals, return_exceptions=True)
        await self.grpc.stop(0.0)
        await self.registry.close()
        self._children.end()
        self._access_log.flush()
        if self._tracing is not None:
            await self._tracing.close()
        for listener in self._listeners:
            listener.close()
        if self._stopping.is_set():
            log.info("stopped")


async def _done_before(
    event: asyncio.Event, *work: asyncio.Future[Any], seconds: float | None = None
) -> set[asyncio.Future[Any]]:
    """Wait for an event, or until some work is done, or ``seconds``; returns what is done."""
    told = asyncio.ensure_future(event.wait())
    done, _ = await asyncio.wait((told, *work), timeout=seconds, return_when="FIRST_COMPLETED")
    told.cancel()
    return done - {told}
