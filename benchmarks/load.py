"""The load generator: HTTP/1.1 over persistent connections, as light as Python gets.

It shares the cores with the server, so it does little: requests are encoded beforehand, and answers
are only counted by status and body; they are checked after the load. Each connection sends its next
request when the last one is answered (a closed loop).
"""

from __future__ import annotations

import gc
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Seconds to wait for an answer.
PATIENCE = 60.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_CHUNK = 1 << 18


class LoadError(Exception):
    """The server cannot be measured: it refuses or breaks connections, or does not answer."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind, sent in turn by each of some connections."""

    requests: Sequence[bytes]
    connections: int


@dataclass(slots=True)
class Traffic:
    """The answers to a stream.

    Attributes:
        in_time: how many arrived before the end of the load; they make the rate.
        latencies: seconds from sending a request to the last byte of its answer.
        answers: how often each (index of the request, status, body) arrived.
    """

    in_time: int = 0
    latencies: list[float] = field(default_factory=list)
    answers: Counter[tuple[int, int, bytes]] = field(default_factory=Counter)


class _Connection:
    """One socket, its present request, and the part of the answer that has arrived."""

    __slots__ = ("_buffer", "_requests", "index", "rest", "sent_at", "sock", "traffic")

    def __init__(self, port: int, requests: Sequence[bytes], first: int, traffic: Traffic) -> None:
        self.traffic = traffic
        self._requests = requests
        self.index = first - 1
        self._buffer = b""
        self.rest = memoryview(b"")
        self.sent_at = 0.0
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    def start(self) -> None:
        """Send the next request."""
        self.index = (self.index + 1) % len(self._requests)
        self.rest = memoryview(self._requests[self.index])
        self.sent_at = time.perf_counter()
        self.send()

    def send(self) -> None:
        """Send as much of the request as the socket accepts."""
        try:
            self.rest = self.rest[self.sock.send(self.rest) :]
        except BlockingIOError:
            return

    def receive(self) -> tuple[int, bytes] | None:
        """Read what has arrived; returns status and body once the answer is complete."""
        data = self.sock.recv(_CHUNK)
        if not data:
            raise LoadError("the server closed a connection before it answered")
        if self._buffer:
            data = self._buffer + data
        head, end, body = data.partition(_HEAD_END)
        if end:
            length = _LENGTH.search(head)
            if length is None:
                raise LoadError(f"an answer without content-length: {head[:200]!r}")
            if len(body) >= int(length[1]):
                self._buffer = b""
                return int(head[9:12]), body
        self._buffer = data
        return None


def drive(port: int, streams: Sequence[Stream], seconds: float) -> list[Traffic]:
    """Put a load on a port of 127.0.0.1 for some seconds; returns each stream's traffic.

    Raises:
        LoadError: the server cannot be measured.
    """
    traffics = [Traffic() for _ in streams]
    connections: list[_Connection] = []
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for stream, traffic in zip(streams, traffics, strict=True):
            for number in range(stream.connections):
                connection = _Connection(port, stream.requests, number, traffic)
                connections.append(connection)
        _run({connection.sock.fileno(): connection for connection in connections}, seconds)
    except OSError as error:
        raise LoadError(f"{type(error).__name__}: {error}") from error
    finally:
        for connection in connections:
            connection.sock.close()
        if gc_was_on:
            gc.enable()
    return traffics


def _run(connections: dict[int, _Connection], seconds: float) -> None:
    now = time.perf_counter
    with select.epoll() as poll:
        ends = now() + seconds
        for number, connection in connections.items():
            connection.start()
            poll.register(number, _interest(connection))
        while connections:
            events = poll.poll(PATIENCE)
            if not events:
                raise LoadError(f"no answer within {PATIENCE:g} s")
            for number, _ in events:
                connection = connections[number]
                if connection.rest:
                    connection.send()
                    poll.modify(number, _interest(connection))
                    continue
                answer = connection.receive()
                if answer is None:
                    continue
                arrived = now()
                connection.traffic.latencies.append(arrived - connection.sent_at)
                connection.traffic.answers[connection.index, *answer] += 1
                if arrived >= ends:
                    poll.unregister(number)
                    del connections[number]
                    continue
                connection.traffic.in_time += 1
                connection.start()
                if connection.rest:
                    poll.modify(number, _interest(connection))


def _interest(connection: _Connection) -> int:
    return select.EPOLLOUT if connection.rest else select.EPOLLIN
