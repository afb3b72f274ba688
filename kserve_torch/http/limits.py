"""Limits of one connection: the size of a request's head, its time, how many requests may wait.

uvicorn itself waits for a request's head without a limit, accepts heads of any length, reads on
however many requests of a connection wait for their turn, and answers malformed requests in plain
text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kserve_torch.http.refusals import last_answer, over_limit, refusal
from kserve_torch.http.upgrade import feed_without_upgrade

#: Bytes of the request line and the headers together.
MAX_HEAD = 64 * 1024
#: Seconds in which a connection over the limit must send its request, to be refused.
REFUSAL_SECONDS = 1.0
#: Nothing more is read from a connection on which this many requests wait behind the one that runs.
#: Until then it is read ahead: only reading shows that the client has left.
MAX_WAITING = 16
#: Nothing more is read while this many bytes of a body wait for the application. uvicorn's 64 KiB
#: are less than one read of the socket brings: nearly every read would pause the next ones.
MAX_AHEAD = 512 * 1024


class BoundedFlow(FlowControl):
    """Reads from a connection only while few of its requests wait.

    Args:
        transport: the connection.
        waiting: its requests that have not begun.

    Attributes:
        was_paused: whether nothing was read for a while since this was last set.
    """

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting
        self.was_paused = False

    def pause_reading(self) -> None:
        """Read no more for now."""
        self.was_paused = True
        super().pause_reading()

    def resume_reading(self) -> None:
        """Read on, unless too many wait; called again after each answer."""
        if len(self._waiting) < MAX_WAITING:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits.

    Attributes:
        most: connections that may be open; requests on further ones are refused.
        patience: seconds for a request's head.
    """

    most: int
    patience: float

    flow: BoundedFlow
    #: Whether the next bytes are part of a head, or of the trailers of a chunked body.
    _counting = False
    _head_bytes = 0
    #: Bytes of the packet that is being parsed.
    _packet = 0
    #: Bytes of the packet in which a later request of the connection began. They may be those of
    #: other requests too, so `_head_bytes` counts from the next packet on.
    _first_packet = 0
    #: Whether a request has begun whose head is not complete.
    _in_head = False
    #: Runs while the connection's first request, or the rest of a later one's head, is awaited.
    _head_timer: asyncio.TimerHandle | None = None
    #: Whether a request was refused. What follows until the connection is closed, which it is only
    #: after the answers that are under way, is dropped.
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        self.flow = BoundedFlow(transport, self.pipeline)
        seconds = self.patience
        if len(self.connections) > self.most:
            self.app = over_limit(self.app, self.most)
            seconds = min(seconds, REFUSAL_SECONDS)
        self._counting = True
        self._wait_for_head(seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_of_head()
        self._unset_keepalive_if_required()  # uvicorn leaves it to run after a reset
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse incoming bytes."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._packet = len(data)
        if self._counting:
            self._head_bytes += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                feed_without_upgrade(self, memoryview(data)[upgrade.args[0] :])
        except HttpParserError:
            self._end(400, "Invalid HTTP request received.")
            return
        if self._in_head and self._head_timer is None:  # most heads are complete by now
            self._wait_for_head(self.patience)
        if self._counting and self._head_bytes > MAX_HEAD:
            self._too_large()

    def _should_upgrade(self) -> bool:
        """Have uvicorn start no request yet: `feed_without_upgrade` parses this head once more."""
        return True

    # --- the parser's calls ---

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = True
        if self._head_timer is None:  # else this is the connection's first request
            self._counting = True
            self._head_bytes = 0
            self._first_packet = self._packet

    def on_headers_complete(self) -> None:
        """The end of its headers."""
        self._end_of_head()
        if self._first_packet + self._head_bytes > MAX_HEAD:
            self._check_length()
        self._check_transfer_codings()
        if self.parser.get_http_version() < "1.1":
            self.expect_100_continue = False  # an HTTP/1.0 client may take it for the answer
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """The size of a chunk. Trailers, which may follow the last chunk, are dropped.

        Merged with the headers they could replace one of them (RFC 9110 6.5.1).
        """
        self.headers = []
        self._head_bytes = 0
        self._counting = True

    def on_body(self, body: bytes) -> None:
        """A part of the body, so no trailers; the same as uvicorn's, but faster."""
        self._counting = False
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > MAX_AHEAD:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_chunk_complete(self) -> None:
        """The end of a chunk, or of the trailers."""
        self._counting = False
        if self.headers:
            self._check_length()

    def _check_length(self) -> None:
        """Count the head or the trailers alone: parts of a body may be in the same packets."""
        fields = sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.url) + fields > MAX_HEAD:
            self._too_large()
            raise HttpParserError("stops the parser")

    def _check_transfer_codings(self) -> None:
        """Refuse all but chunked (RFC 9112 6.1), the only coding that the parser decodes."""
        for name, value in self.headers:
            if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                coding = value.decode("latin-1")[:40]
                self._end(501, f"Transfer-Encoding: {coding!r} is not chunked")
                raise HttpParserError("stops the parser")

    # --- refusals ---

    def _wait_for_head(self, seconds: float) -> None:
        self.flow.was_paused = self.flow.read_paused
        self._head_timer = self.loop.call_later(seconds, self._too_slow)

    def _end_of_head(self) -> None:
        self._counting = self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        """Close a connection whose request is late; answer it if some of it has come."""
        self._head_timer = None
        if self.flow.was_paused:  # it may have come in time and not been read
            self._wait_for_head(self.patience)
        elif self._in_head:
            text = f"the request's headers did not arrive within {self.patience:g} s"
            self._end(408, text)
        else:
            self.transport.close()

    def _too_large(self) -> None:
        self._end(431, f"the request's headers are larger than {MAX_HEAD} bytes")

    def _end(self, status: int, text: str) -> None:
        """Answer and close without the application, but after answers that are under way."""
        self._end_of_head()
        cycle = self.cycle
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:  # the last complete request; close after its answer
                cycle.keep_alive = False
                return
            if self.pipeline:  # the faulty request is queued behind others
                self.pipeline[0] = (cycle, refusal(status, text))  # type: ignore[assignment]
                return
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(last_answer(status, text))
        self.transport.close()
