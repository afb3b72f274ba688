"""HTTP/1.1 on one connection: requests go to the application, the short way if they are whole."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from kserve_torch.errors import ServingError
from kserve_torch.http.app import App
from kserve_torch.http.http10 import speak_http10
from kserve_torch.http.limits import LimitedProtocol
from kserve_torch.http.whole import answer_whole, is_whole

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)

#: Bytes of the message that ends TLS. If no more are unsent, the client has been sent its answer,
#: and this message may be lost.
FAREWELL = 32


class GuardedProtocol(LimitedProtocol):
    """One connection; made by uvicorn."""

    #: The request that was started last.
    _running: RequestResponseCycle | None = None
    #: The task that answers a request that arrived as a whole, while there is one.
    _answering: asyncio.Task[None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a request whose client went away is withdrawn."""
        super().connection_lost(exc)
        if self._answering is not None:
            self._answering.cancel()
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn only knows the connection's last request, which may be queued behind this one.
            running.disconnected = True
            running.message_event.set()

    # --- the end of TLS ---

    def shutdown(self) -> None:
        """Close the connection now or after its answer; uvicorn calls it when the server stops."""
        super().shutdown()
        self._hang_up()

    def on_response_complete(self) -> None:
        """Go on with the next request, if the connection is not closed."""
        super().on_response_complete()
        self._hang_up()

    def _hang_up(self) -> None:
        """Have a TLS connection that is closed end once everything is sent.

        asyncio waits until the client agrees, which many do not, or 30 s, and then drops the rest.
        """
        if self.scheme != "https" or not self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection is None or self.transport.get_write_buffer_size() > FAREWELL:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.shutdown(socket.SHUT_RD)

    # --- requests that arrived as a whole ---

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request; one that arrived as a whole takes the short way."""
        self._running = cycle
        if cycle.scope["http_version"] < "1.1":
            speak_http10(cycle)
        self.tasks.add(self.loop.create_task(self._serve(cycle, app)))

    async def _serve(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:
        task = asyncio.current_task(self.loop)
        assert task is not None
        try:
            if isinstance(app, App) and is_whole(cycle, app):
                self._answering = task
                await self._serve_whole(cycle, app)
            else:
                await cycle.run_asgi(self._breaking_off(cycle, app))  # type: ignore[arg-type]
        finally:
            self.tasks.discard(task)

    async def _serve_whole(self, cycle: RequestResponseCycle, app: App) -> None:
        try:
            await answer_whole(cycle, app)
        except asyncio.CancelledError:
            if not cycle.disconnected:
                raise
        except ServingError as error:
            self._break_off(cycle, error)
        except Exception:
            log.exception("a response could not be sent")
            self.transport.close()
        finally:
            self._answering = None

    # --- answers that fail half way ---

    def _breaking_off(self, cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
        """The application, with streamed answers that may fail."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            except ServingError as error:
                self._break_off(cycle, error)

        return serve

    def _break_off(self, cycle: RequestResponseCycle, error: ServingError) -> None:
        """End the connection instead of the answer; what a handler raised is in the log already."""
        log.warning("a response was aborted: %s", error.message)
        cycle.disconnected = True  # else uvicorn logs that the answer has no end
        self.transport.close()


def guarded(most: int, patience: float) -> type[GuardedProtocol]:
    """The protocol class with these limits, as uvicorn takes it.

    Args:
        most: connections that may be open; requests on further ones are answered 503.
        patience: seconds from the first byte of a request, or the start of a connection, to the end
            of the headers.
    """
    return type("GuardedProtocol", (GuardedProtocol,), {"most": most, "patience": patience})
