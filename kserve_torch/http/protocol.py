"""HTTP/1.1 on one connection: uvicorn's protocol with limits on what a client may cost.

uvicorn itself waits for ever for the head of a request, takes a head of any length and answers
what it cannot parse in plain text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from kserve_torch.http.app import App
from kserve_torch.http.exchange import JSON
from kserve_torch.http.whole import exchange, is_whole

log = logging.getLogger(__name__)

#: Bytes of the request line and the headers together.
MAX_HEAD = 64 * 1024
#: Seconds that a connection over the limit has to ask for something and be refused.
_REFUSAL_SECONDS = 1.0
#: Answered on every connection: a kubelet that is refused here would restart the pod.
_ALWAYS = ("/v2/health/live", "/ping")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What the clients of one server may cost.

    Attributes:
        connections: open at a time; one more is answered 503.
        head_seconds: from the first byte of a request, or the start of a connection, to the end of
            the headers.
        stalled_seconds: for which a client may take nothing of the answer that waits for it.
    """

    connections: int
    head_seconds: float
    stalled_seconds: float


class Corked:
    """A transport that waits a turn of the loop for a head's body: one packet, not two.

    Args:
        transport: what is written to; everything but writing and closing is its own.
        loop: its event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write ``data``, and before it the head that was kept back; keep a head back itself."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            # Not every head has a body: HEAD, 204, 100 Continue.
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Write what was kept back, then close."""
        self._flush()
        self._transport.close()


class GuardedProtocol(HttpToolsProtocol):
    """One connection; made by uvicorn."""

    limits: ConnectionLimits

    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    #: The exchange of a request that had come as a whole, if one is under way.
    _exchange: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(Corked(transport, self.loop))  # type: ignore[arg-type]  # by duck
        seconds = self.limits.head_seconds
        if len(self.connections) > self.limits.connections:
            self.app = self._refuse
            seconds = min(seconds, _REFUSAL_SECONDS)
        self._wait_for_head(seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a request whose client went away is withdrawn."""
        self._end_of_head()
        self._end_of_stall()
        super().connection_lost(exc)
        if self._exchange is not None:
            self._exchange.cancel()

    def pause_writing(self) -> None:
        """More of an answer waits than the client takes."""
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has taken most of it."""
        self._end_of_stall()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > MAX_HEAD:
            self._too_large()

    # --- the parser's calls ---

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._head_timer is None:
            self._wait_for_head(self.limits.head_seconds)

    def on_headers_complete(self) -> None:
        """The end of its headers."""
        self._end_of_head()
        if self._head_bytes > MAX_HEAD and self._head_length() > MAX_HEAD:
            self._too_large()
        else:
            super().on_headers_complete()

    def _head_length(self) -> int:
        """Bytes of the head alone, where part of a body came with it."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade that is not offered is ignored (RFC 9110 7.8), and is no news."""

    # --- requests that came as a whole ---

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start a request; one that came as a whole goes the short way."""
        if not isinstance(app, App):
            super()._start_asgi_task(cycle, app)
            return
        task = self.loop.create_task(self._serve(cycle, app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _serve(self, cycle: RequestResponseCycle, app: App) -> None:
        if not is_whole(cycle, app):
            await cycle.run_asgi(app)  # type: ignore[arg-type]  # Mapping for its TypedDict
            return
        self._exchange = asyncio.current_task()
        try:
            await exchange(cycle, app)
        except asyncio.CancelledError:
            if not cycle.disconnected:
                raise
        except Exception:
            log.exception("an answer could not be sent")
            self.transport.close()
        finally:
            self._exchange = None

    # --- answers that nobody takes ---

    def _watch(self, waiting: int) -> None:
        self._end_of_stall()
        seconds = self.limits.stalled_seconds
        self._stall_timer = self.loop.call_later(seconds, self._check, waiting)

    def _check(self, waited: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting < waited:
            self._watch(waiting)
        else:
            self.transport.abort()

    def _end_of_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    # --- refusals ---

    def _wait_for_head(self, seconds: float) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(seconds, self._too_slow)

    def _end_of_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        """End a connection whose request does not come; without a byte of it there is no answer."""
        self._head_timer = None
        if self._head_bytes:
            seconds = self.limits.head_seconds
            self._end(408, f"the request's headers did not arrive within {seconds:g} s")
        else:
            self.transport.close()

    def _too_large(self) -> None:
        self._end_of_head()
        self._end(431, f"the request's headers are larger than {MAX_HEAD} bytes")

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._end_of_head()
        self._end(400, msg)

    def _end(self, status: int, text: str) -> None:
        """Answer and close, before or instead of any application."""
        if self.transport.is_closing():
            return
        self.transport.write(_response(status, {"error": text}))
        self.transport.close()

    async def _refuse(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """The application of a connection over the limit."""
        if scope["path"] in _ALWAYS:
            await self.config.loaded_app(scope, receive, send)
            return
        error = f"{self.limits.connections} connections are open (max_connections)"
        body = orjson.dumps({"error": error})
        headers = {"content-type": JSON, "retry-after": "1", "connection": "close"}
        headers["content-length"] = str(len(body))
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 503, "headers": raw})
        await send({"type": "http.response.body", "body": body})


def _response(status: int, value: Mapping[str, str]) -> bytes:
    body = orjson.dumps(value)
    head = f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return STATUS_LINE[status] + head.encode() + body


def guarded(limits: ConnectionLimits) -> type[GuardedProtocol]:
    """The protocol class with its limits, as uvicorn wants it."""
    return type("GuardedProtocol", (GuardedProtocol,), {"limits": limits})
