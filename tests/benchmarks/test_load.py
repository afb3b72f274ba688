"""The load generator, against servers that answer well and badly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from benchmarks.load import LoadError, Stream, drive

Reply = Callable[[bytes, socket.socket], None]


def request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


@contextmanager
def serving(reply: Reply) -> Iterator[int]:
    """A server that reads requests as `request` makes them; gives its port."""

    def read(connection: socket.socket) -> None:
        with connection, closing(connection.makefile("rb")) as file:
            while file.readline():
                length = int(file.readline().rpartition(b" ")[2])
                file.readline()
                reply(file.read(length), connection)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=read, args=(connection,), daemon=True)
            thread.start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def echo(body: bytes, connection: socket.socket) -> None:
    connection.sendall(answer(body))


def test_every_answer_is_counted_for_its_own_request() -> None:
    bodies = [b"zero", b"one", b"two"]
    with serving(echo) as port:
        (traffic,) = drive(port, [Stream([request(body) for body in bodies], 4)], 0.2)
    assert {(i, status, body) for i, status, body in traffic.answers} == {
        (i, 200, body) for i, body in enumerate(bodies)
    }
    assert 0 < traffic.in_time <= len(traffic.latencies) == traffic.answers.total()
    assert all(0 < latency < 1 for latency in traffic.latencies)


def test_streams_are_told_apart() -> None:
    with serving(echo) as port:
        streams = [Stream([request(b"a")], 1), Stream([request(b"b")], 2)]
        first, second = drive(port, streams, 0.1)
    assert set(first.answers) == {(0, 200, b"a")}
    assert set(second.answers) == {(0, 200, b"b")}


def test_bodies_larger_than_any_buffer() -> None:
    body = bytes(range(256)) * 40_000
    with serving(echo) as port:
        (traffic,) = drive(port, [Stream([request(body)], 2)], 0.2)
    assert set(traffic.answers) == {(0, 200, body)}


def test_answers_in_pieces() -> None:
    def trickle(body: bytes, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in answer(body):
            connection.send(bytes([byte]))

    with serving(trickle) as port:
        (traffic,) = drive(port, [Stream([request(b"slow")], 1)], 0.1)
    assert set(traffic.answers) == {(0, 200, b"slow")}


def test_answers_that_come_too_late_are_kept_but_not_in_the_rate() -> None:
    over = threading.Event()

    def late(body: bytes, connection: socket.socket) -> None:
        over.wait(0.3)
        connection.sendall(answer(body))

    with serving(late) as port:
        (traffic,) = drive(port, [Stream([request(b"x")], 1)], 0.1)
    assert traffic.in_time == 0
    assert traffic.latencies[0] > 0.2
    assert traffic.answers == {(0, 200, b"x"): 1}


def test_requests_come_at_a_rate() -> None:
    bodies = [b"zero", b"one"]
    with serving(echo) as port:
        stream = Stream([request(body) for body in bodies], connections=8, rate=200.0)
        first, second = (drive(port, [stream], 0.5)[0] for _ in range(2))
    for traffic in first, second:
        assert 60 < traffic.answers.total() < 140
        assert {(i, body) for i, _, body in traffic.answers} == {(0, b"zero"), (1, b"one")}
    assert first.answers.total() == second.answers.total()  # each server gets as many


def test_requests_that_find_no_free_connection_wait_for_one() -> None:
    waited = threading.Event()

    def slow(body: bytes, connection: socket.socket) -> None:
        waited.wait(0.1)
        connection.sendall(answer(body))

    with serving(slow) as port:
        (traffic,) = drive(port, [Stream([request(b"x")], 1, rate=50.0)], 0.3)
    assert traffic.answers.total() > 5
    assert traffic.in_time <= 3
    assert max(traffic.latencies) > 0.3


def test_refusals_keep_their_status() -> None:
    def refuse(body: bytes, connection: socket.socket) -> None:
        connection.sendall(answer(b"full", b"503 Service Unavailable"))

    with serving(refuse) as port:
        (traffic,) = drive(port, [Stream([request(b"x")], 1)], 0.1)
    assert set(traffic.answers) == {(0, 503, b"full")}


def hang_up(body: bytes, connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def no_length(body: bytes, connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize(
    ("reply", "text"),
    [(hang_up, "closed a connection"), (no_length, "without content-length")],
)
@pytest.mark.parametrize("rate", [None, 100.0])
def test_servers_that_cannot_be_measured(reply: Reply, text: str, rate: float | None) -> None:
    with serving(reply) as port, pytest.raises(LoadError, match=text):
        drive(port, [Stream([request(b"x")], 1, rate)], 0.2)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(LoadError, match="refused"):
        drive(port, [Stream([request(b"x")], 1)], 0.1)
