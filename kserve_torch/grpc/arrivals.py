"""How calls come from gRPC's threads to the event loop: all that are waiting, in one turn of it.

gRPC on asyncio needs a turn of the event loop for each event. A call has four events, and to accept
it takes three more turns, before which no other call is accepted. In each turn the loop gives up
the interpreter's lock several times, and gets it back only after the handlers that compute in
Python: beside 20 of those, 200 calls at once took 25 s, and over HTTP 1.5 s.

What is changed here is internal to grpcio; a release without it works as before.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context
from types import SimpleNamespace
from typing import Any

from grpc._cython import cygrpc

#: Calls of a server that are accepted while the loop is busy. More wait in gRPC for its next turn.
AHEAD = 64


class _Announcements(socket.socket):
    """Where gRPC's threads announce events, a byte for each.

    gRPC reads one byte and then handles all events that there are: the loop would wake up once more
    for each of the other bytes, with nothing left to do.
    """

    def recv(self, *args: Any) -> bytes:
        return super().recv(65536)


def _pair() -> tuple[socket.socket, socket.socket]:
    read, write = socket.socketpair()
    return _Announcements(fileno=read.detach()), write


class _Accepting(asyncio.Task[Any]):
    """Waits for the next call. If it has come, who awaits it goes on at once, in the same turn."""

    def add_done_callback(
        self, callback: Callable[[_Accepting], object], *, context: Context | None = None
    ) -> None:
        if self.done():
            callback(self)
        else:
            super().add_done_callback(callback, context=context)


class _Server(cygrpc.AioServer):  # type: ignore[misc]
    """Has gRPC accept `AHEAD` calls before the loop takes the first of them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._accepting: deque[_Accepting] = deque()
        self._refusals: set[asyncio.Task[None]] = set()

    def _next_call(self) -> _Accepting:
        while len(self._accepting) < AHEAD:
            loop = asyncio.get_running_loop()
            self._accepting.append(_Accepting(super()._request_call(), loop=loop))
        return self._accepting.popleft()

    # Newer releases ask for the former, older ones for the latter.

    def _make_request_call_future(self, method: None) -> _Accepting:
        return self._next_call()

    async def _request_call(self) -> Any:
        return await self._next_call()

    async def shutdown(self, grace: float | None) -> None:
        """End; gRPC would wait for calls that it has accepted and the loop does not take any more.

        Args:
            grace: seconds that running calls may take.
        """
        for call in self._accepting:
            call.add_done_callback(self._refuse)
        await super().shutdown(grace)

    def _refuse(self, call: _Accepting) -> None:
        if call.cancelled() or call.exception():  # none came, which asyncio need not log
            return
        code, text = cygrpc.StatusCode.unavailable, "the server is being stopped"
        head = cygrpc.SendInitialMetadataOperation((), 0)
        loop = asyncio.get_running_loop()
        sending = cygrpc._send_error_status_from_server(call.result(), code, text, (), head, loop)
        task = loop.create_task(sending)
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)


def take_together() -> None:
    """Have the servers that are made from now on take all calls and events that are there.

    Events only if nothing of ``grpc.aio`` was made before in the process.
    """
    cygrpc.socket = SimpleNamespace(**{**vars(socket), "socketpair": _pair})
    cygrpc.AioServer = _Server
