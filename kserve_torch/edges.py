"""The HTTP side of the process: the application with its routes, and how uvicorn serves it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from kserve_torch.http.app import App, Route
from kserve_torch.http.cors import with_cors
from kserve_torch.http.docs import Docs
from kserve_torch.http.management import Management
from kserve_torch.http.metadata import Metadata
from kserve_torch.http.metrics import MetricsText
from kserve_torch.http.native import Native
from kserve_torch.http.protocol import guarded
from kserve_torch.http.v1 import V1
from kserve_torch.http.v2 import V2
from kserve_torch.metrics import Metrics
from kserve_torch.models.registry import Registry
from kserve_torch.settings import Settings
from kserve_torch.settings.addresses import Binding
from kserve_torch.tls import Identity
from kserve_torch.tokens import Tokens

#: Seconds between the last new connection and the shutdown, in which those that wait to be accepted
#: are, and their first requests are read.
ACCEPT_SECONDS = 0.1


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling: `Server` handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals as they are."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what has been asked, and close each connection after that."""
        for sock in sockets or ():
            sock.listen(0)  # closing it would reset the connections that wait to be accepted
        await asyncio.sleep(ACCEPT_SECONDS)
        await super().shutdown(sockets)


def uvicorn_config(app: ASGIApp, settings: Settings, files: Identity | None) -> uvicorn.Config:
    """How uvicorn serves an application; loaded, so that its TLS context is there.

    Args:
        app: the application.
        settings: time-outs and limits.
        files: certificate and key, or None for plain HTTP.
    """
    config = uvicorn.Config(
        app,
        http=guarded(settings.max_connections, settings.receive_timeout),
        ws="none",
        lifespan="off",
        workers=1,  # else $WEB_CONCURRENCY
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.timeout_keep_alive,
        ssl_certfile=files.certificate if files else None,
        ssl_keyfile=files.key if files else None,
    )
    config.load()
    return config


def application(
    registry: Registry,
    metrics: Metrics,
    settings: Settings,
    tokens: Tokens | None,
    bindings: Sequence[Binding],
) -> ASGIApp:
    """One application for all sockets.

    Args:
        registry: the models.
        metrics: what ``/metrics`` shows.
        settings: what was configured.
        tokens: the keys, if token authorisation is on.
        bindings: the sockets, each with its roles.
    """
    roles = {binding.address.endpoint: binding.roles for binding in bindings}
    v2 = V2(registry)
    routes: list[Route] = [
        V1(registry, v2).route,
        v2.route,
        Metadata(registry).route,
        Management(registry, settings, tokens).route,
        Native(registry, settings, tokens).route,
    ]
    if settings.enable_docs_url:
        routes.append(Docs(registry).route)
    app = App(
        routes,
        MetricsText(metrics.pieces, enabled=settings.enable_metrics_api).route,
        roles,
        settings.max_request_size,
        settings.receive_timeout,
        tokens,
        draining=lambda: registry.draining,
        refused=registry.emit,
    )
    return with_cors(app, settings)
