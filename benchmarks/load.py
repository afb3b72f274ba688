"""The load generator: HTTP/1.1 over persistent connections, as light as Python gets.

It shares the cores with the server, so it does little: requests are encoded beforehand, and answers
are only counted by status and body; they are checked after the load. Each connection sends its next
request when the last one is answered (a closed loop), or requests come at random times, however
long the answers take (an open loop).
"""

from __future__ import annotations

import gc
import math
import random
import re
import select
import socket
import time
from collections import Counter, deque
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
    """Requests of one kind, sent in turn by each of some connections.

    Attributes:
        rate: requests per second that come at random (a Poisson process), each on a connection that
            is free; None if each connection sends again once it has its answer.
    """

    requests: Sequence[bytes]
    connections: int
    rate: float | None = None


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

    __slots__ = ("_buffer", "_requests", "arrivals", "index", "rest", "sent_at", "sock", "traffic")

    def __init__(
        self,
        port: int,
        requests: Sequence[bytes],
        first: int,
        traffic: Traffic,
        arrivals: _Arrivals | None,
    ) -> None:
        self.traffic = traffic
        self.arrivals = arrivals
        self._requests = requests
        self.index = first - 1
        self._buffer = b""
        self.rest = memoryview(b"")
        self.sent_at = 0.0
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)

    def start(self, since: float | None = None) -> None:
        """Send the next request; its client waits since that time, or from now on."""
        self.index = (self.index + 1) % len(self._requests)
        self.rest = memoryview(self._requests[self.index])
        self.sent_at = since or time.perf_counter()
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


class _Arrivals:
    """When requests of a stream come; those that find no free connection wait for one."""

    def __init__(self, rate: float) -> None:
        self._gaps = random.Random(rate)  # the same for each server
        self._rate = rate
        self.due = 0.0
        self.free: list[_Connection] = []
        self.late: deque[float] = deque()

    def begin(self, now: float) -> None:
        """The first gap begins now."""
        self.due = now
        self._next()

    def _next(self) -> None:
        self.due += self._gaps.expovariate(self._rate)

    def come(self, now: float) -> list[_Connection]:
        """Let those come that are due; gives the free connections that are for them."""
        taken = []
        while self.due <= now:
            if self.free:
                taken.append(self.free.pop())
            else:
                self.late.append(self.due)
            self._next()
        return taken


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
            arrivals = None if stream.rate is None else _Arrivals(stream.rate)
            for number in range(stream.connections):
                connection = _Connection(port, stream.requests, number, traffic, arrivals)
                connections.append(connection)
        _Load(connections).run(seconds)
    except OSError as error:
        raise LoadError(f"{type(error).__name__}: {error}") from error
    finally:
        for connection in connections:
            connection.sock.close()
        if gc_was_on:
            gc.enable()
    return traffics


class _Load:
    """A load while it runs."""

    def __init__(self, connections: Sequence[_Connection]) -> None:
        self._connections = {connection.sock.fileno(): connection for connection in connections}
        self._arrivals = dict.fromkeys(c.arrivals for c in connections if c.arrivals)
        self._ends = 0.0
        #: Connections that wait for an answer.
        self._asking = 0
        self._poll = select.epoll()

    def run(self, seconds: float) -> None:
        """Until all is answered that is sent within so many seconds."""
        with self._poll:
            now = time.perf_counter()
            self._ends = now + seconds
            for arrivals in self._arrivals:
                arrivals.begin(now)
            for connection in self._connections.values():
                self._poll.register(connection.sock, select.EPOLLIN)
                if connection.arrivals is None:
                    self._ask(connection)
                else:
                    connection.arrivals.free.append(connection)
            while (due := self._let_come()) <= self._ends or self._asking:
                self._handle(due)

    def _let_come(self) -> float:
        """Send what is due; gives the time at which more is, or infinity."""
        now = min(time.perf_counter(), self._ends)
        for arrivals in self._arrivals:
            for connection in arrivals.come(now):
                self._ask(connection)
        return min((arrivals.due for arrivals in self._arrivals), default=math.inf)

    def _handle(self, due: float) -> None:
        """Wait until something happens, or until ``due`` if that is before the end."""
        last = due > self._ends
        events = self._poll.poll(PATIENCE if last else max(0.0, due - time.perf_counter()))
        if not events and last:
            raise LoadError(f"no answer within {PATIENCE:g} s")
        for number, _ in events:
            connection = self._connections[number]
            if connection.rest:
                connection.send()
                self._listen(connection)
            elif (answer := connection.receive()) is not None:
                self._answered(connection, *answer)

    def _answered(self, connection: _Connection, status: int, body: bytes) -> None:
        self._asking -= 1
        arrived, traffic = time.perf_counter(), connection.traffic
        traffic.latencies.append(arrived - connection.sent_at)
        traffic.answers[connection.index, status, body] += 1
        if arrived < self._ends:
            traffic.in_time += 1
        arrivals = connection.arrivals
        if arrivals is None:
            if arrived < self._ends:
                self._ask(connection)
        elif arrivals.late:
            self._ask(connection, arrivals.late.popleft())
        else:
            arrivals.free.append(connection)

    def _ask(self, connection: _Connection, since: float | None = None) -> None:
        connection.start(since)
        self._asking += 1
        if connection.rest:
            self._listen(connection)

    def _listen(self, connection: _Connection) -> None:
        interest = select.EPOLLOUT if connection.rest else select.EPOLLIN
        self._poll.modify(connection.sock, interest)
