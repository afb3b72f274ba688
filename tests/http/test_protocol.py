"""HTTP/1.1 as bytes on real sockets: what is no whole and plain request."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from kserve_torch.http.app import WATCH_AFTER
from kserve_torch.http.limits import MAX_WAITING
from kserve_torch.http.protocol import GuardedProtocol, guarded

from ..faults.actor import until
from ..makers import make_archive
from ..server import Server
from .raw import Client, post, predicted

HANDLER = """
import gc
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    if data is None:
        return None
    for row in data:
        if row in ("GuardedProtocol", "RequestResponseCycle"):
            return [sum(type(each).__name__ == row for each in gc.get_objects())]
        if row in ("wait", {"body": bytearray(b"wait")}):
            open("{pipe}").close()
        if row == {"body": "stream"}:
            for part in ("a ", "b "):
                send_intermediate_predict_response([part], context.request_ids, "", 200, context)
            return ["end"]
        if row == {"body": "unending"}:
            send_intermediate_predict_response(["a "], context.request_ids, "", 200, context)
            open("{pipe}").close()
        if row == {"body": "broken"}:
            send_intermediate_predict_response(["a "], context.request_ids, "", 200, context)
            raise ValueError("half way")
    return list(data)
"""

H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
SMUGGLED = b"GET /v1/models/m HTTP/1.1\r\nHost: m\r\n\r\n"


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the handler waits with the row ``wait``, until somebody opens it to write."""
    path = tmp_path_factory.mktemp("pipe") / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pipe: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("protocol")
    make_archive(folder / "m.mar", {"handler.py": HANDLER.replace("{pipe}", str(pipe))})
    with Server(folder) as running:
        yield running


def split(request: bytes) -> tuple[bytes, bytes]:
    """Head and body."""
    head = request.index(b"\r\n\r\n") + 4
    return request[:head], request[head:]


# --- upgrades ---


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_an_upgrade_is_ignored_and_the_request_served(server: Server, version: str) -> None:
    request = post("a", version, *H2C)
    for pieces in ([request], split(request), [request[:30], request[30:]]):
        with Client(server) as client:
            client.send(*pieces)
            assert client.answer()[::2] == (200, predicted("a"))


def test_an_upgrade_of_a_connection_that_closes_is_answered_whatever_follows(
    server: Server,
) -> None:
    with Client(server) as client:
        client.send(post("a", "1.1", "Connection: Upgrade, close", "Upgrade: h2c") + post("b"))
        assert client.answer()[::2] == (200, predicted("a"))
        assert client.ended()


def test_the_body_of_a_request_for_an_upgrade_is_no_request(server: Server) -> None:
    for head in (b"Content-Length: %d" % len(SMUGGLED), b"Transfer-Encoding: chunked"):
        body = (
            SMUGGLED if b"Length" in head else b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
        )
        fields = "\r\n".join(H2C).encode()
        request = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\n%b\r\n%b\r\n\r\n" % (
            fields,
            head,
        )
        with Client(server) as client:
            client.send(request, body, post("b"))
            assert client.answer()[0] == 400
            assert client.answer()[::2] == (200, predicted("b"))


def test_requests_for_upgrades_in_one_packet(server: Server) -> None:
    with Client(server) as client:
        client.send(b"".join(post(row, "1.1", *H2C) + post(row.upper()) for row in "abc"))
        for row in "abc":
            assert client.answer()[2] == predicted(row)
            assert client.answer()[2] == predicted(row.upper())


def test_an_upgrade_without_a_body(server: Server) -> None:
    fields = "\r\n".join(H2C).encode()
    with Client(server) as client:
        client.send(b"GET /v1/models/m HTTP/1.1\r\nHost: m\r\n%b\r\n\r\n" % fields, post("a"))
        assert client.answer()[0] == 200
        assert client.answer()[2] == predicted("a")


@pytest.mark.parametrize("target", [b"m:80", b"m:80/x"])
def test_there_is_no_tunnel(server: Server, target: bytes) -> None:
    with Client(server) as client:
        client.send(b"CONNECT %b HTTP/1.1\r\nHost: m\r\n\r\n" % target + SMUGGLED)
        status, headers, body = client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert body.startswith(b'{"error":')
        assert client.ended()


# --- heads and trailers ---


def chunked(row: str, *trailers: bytes) -> bytes:
    """A request of one chunk, and what follows it, which its end is part of."""
    body = b'{"instances": ["%s"]}' % row.encode()
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\n"
    fields = b"".join(b"%b\r\n" % field for field in trailers)
    return head + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, fields)


def test_trailers_in_one_read_have_the_limit_too(server: Server) -> None:
    with Client(server) as client:
        client.send(chunked("a", *FIELDS[:10_000]))
        assert client.answer()[0] == 431


def test_trailers_are_no_headers(server: Server) -> None:
    with Client(server) as client:
        client.send(chunked("a", b"content-encoding: br", b"x-request-timeout-ms: nonsense"))
        assert client.answer()[::2] == (200, predicted("a"))
        client.send(chunked("b"))
        assert client.answer()[2] == predicted("b")


@pytest.mark.parametrize(
    "codings", [b"gzip, chunked", b"gzip", b"gzip\r\nTransfer-Encoding: chunked"]
)
def test_transfer_codings_that_nobody_undoes_are_refused(server: Server, codings: bytes) -> None:
    with Client(server) as client:
        client.send(chunked("a").replace(b": chunked", b": " + codings))
        status, headers, body = client.answer()
        assert (status, headers["connection"]) == (501, "close")
        assert body.startswith(b'{"error":"Transfer-Encoding: \'gzip')
        assert client.ended()


def test_chunks_by_any_other_case(server: Server) -> None:
    with Client(server) as client:
        client.send(chunked("a").replace(b": chunked", b":  Chunked "))
        assert client.answer()[2] == predicted("a")


#: More than one read of a socket brings.
FIELDS = [b"x-%d: y" % i for i in range(60_000)]


@pytest.mark.parametrize("trailers", [FIELDS, [b"x: " + b"y" * 600_000]], ids=["many", "long"])
@pytest.mark.parametrize("end", [None, -2], ids=["complete", "endless"])
def test_trailers_have_a_limit(server: Server, trailers: list[bytes], end: int | None) -> None:
    request = chunked("a", *trailers)[:end]
    for pieces in ([request], [request[:200], request[200:]]):
        with Client(server) as client:
            with suppress(ConnectionError):  # it does not take all of it
                client.send(*pieces)
            status, headers, body = client.answer()
            assert (status, headers["connection"]) == (431, "close")
            assert body.startswith(b'{"error":')


def test_a_chunk_may_be_larger_than_a_head(server: Server) -> None:
    row = "a" * 1_000_000
    with Client(server) as client:
        client.send(chunked(row))
        assert client.answer()[2] == predicted(row)


def test_a_head_has_its_limit_on_every_request(server: Server) -> None:
    with Client(server) as client:
        client.send(post("a"))
        assert client.answer()[2] == predicted("a")
        client.send(post("b", "1.1", f"X-Large: {'x' * 70_000}"))
        assert client.answer()[0] == 431
        assert client.ended()


# --- what is no HTTP, behind what is ---

GARBAGE = b"\x00\x01 no HTTP\r\n\r\n"
BAD_CHUNK = chunked("x")[: -len(b"0\r\n\r\n")] + b"no size\r\n"


def test_garbage_is_refused(server: Server) -> None:
    for garbage in (GARBAGE, BAD_CHUNK):
        with Client(server) as client:
            client.send(garbage)
            assert client.answer()[0] == 400
            assert client.ended()


@pytest.mark.parametrize("after", [GARBAGE, post("b", "1.1", f"X-Large: {'x' * 70_000}")])
def test_requests_before_garbage_get_their_answers(
    server: Server, pipe: Path, after: bytes
) -> None:
    for pieces in ([post("wait") + post("a") + after], [post("wait"), post("a") + after]):
        with Client(server) as client:
            client.send(*pieces)
            pipe.open("w").close()
            assert client.answer()[2] == predicted("wait")
            status, headers, body = client.answer()
            assert (status, headers["connection"], body) == (200, "close", predicted("a"))
            assert client.ended()


def test_a_damaged_request_behind_another_gets_its_own_answer(server: Server, pipe: Path) -> None:
    with Client(server) as client:
        client.send(post("wait") + BAD_CHUNK)
        pipe.open("w").close()
        assert client.answer()[2] == predicted("wait")
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert client.ended()


# --- requests that wait behind others ---


def test_only_so_many_requests_of_a_connection_are_read_ahead(server: Server) -> None:
    get = b"GET /v2/health/live HTTP/1.1\r\nHost: m\r\nX-Pad: %b\r\n\r\n" % (b"x" * 200)
    with Client(server) as client:
        pieces = (get * 200, post("RequestResponseCycle"), get * 5000)
        sending = threading.Thread(target=client.send, args=(b"".join(pieces),))
        sending.start()
        answers = [client.answer() for _ in range(5201)]
        sending.join()
    assert {status for status, _, _ in answers} == {200}
    # One read of the socket brings about a thousand.
    assert json.loads(answers[200][2])["predictions"][0] < 2500


def test_a_request_that_is_not_read_on_is_not_late(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    make_archive(
        tmp_path / "m.mar", {"handler.py": HANDLER.replace("{pipe}", str(tmp_path / "pipe"))}
    )
    request = post("b")
    with Server(tmp_path, "--receive_timeout", "1") as server, Client(server) as client:
        client.send(post("wait") + post("a") * MAX_WAITING + request[:30])
        late = time.monotonic() + 1.5
        until(lambda: time.monotonic() > late)
        (tmp_path / "pipe").open("w").close()
        client.send(request[30:])
        for row in ("wait", *"a" * MAX_WAITING, "b"):
            assert client.answer()[2] == predicted(row)


class Transport(asyncio.Transport):
    """A connection that notes when no more is to be read, and that it was closed."""

    stops = 0
    closed = False

    def pause_reading(self) -> None:
        self.stops += 1

    def resume_reading(self) -> None:
        pass

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def connected(transport: Transport, state: ServerState) -> GuardedProtocol:
    async def app(scope: object, receive: object, send: object) -> None:
        """Takes nothing of the body."""

    config = uvicorn.Config(app, http=guarded(1, 60.0), ws="none", log_config=None)
    config.load()
    protocol = guarded(1, 60.0)(config, state, {}, asyncio.get_running_loop())
    protocol.connection_made(transport)
    return protocol


async def test_a_request_that_was_not_read_on_for_a_while_has_its_time_again() -> None:
    transport = Transport()
    protocol = connected(transport, ServerState())
    protocol.data_received(b"GET / HT")
    protocol.flow.pause_reading()
    protocol._too_slow()
    protocol.flow.resume_reading()
    protocol._too_slow()  # it could be read for a moment
    assert not transport.closed
    protocol._too_slow()
    assert transport.closed
    protocol.connection_lost(None)


async def test_a_body_is_read_without_stops_unless_it_is_large() -> None:
    state, transport = ServerState(), Transport()
    protocol = connected(transport, state)
    protocol.data_received(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (512 * 1024 + 1))
    for _ in range(8):
        protocol.data_received(b"x" * 64 * 1024)
    assert transport.stops == 0
    protocol.data_received(b"x")
    assert transport.stops == 1
    protocol.connection_lost(None)
    await asyncio.gather(*state.tasks)


async def test_nothing_is_kept_of_what_comes_behind_a_refused_request() -> None:
    state, transport = ServerState(), Transport()
    protocol = connected(transport, state)
    protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")  # is not answered yet
    protocol.data_received(b"GET / HTTP/1.1\r\n")
    for _ in range(100):
        protocol.data_received(b"a: b\r\n" * 1000)
    assert not transport.closed
    assert len(protocol.headers) < 12_000
    protocol.connection_lost(None)
    await asyncio.gather(*state.tasks)


@pytest.mark.parametrize("fields", [b"x: " + b"y" * 70_000, b"Transfer-Encoding: gzip"])
async def test_a_request_that_is_refused_does_not_begin(fields: bytes) -> None:
    state, transport = ServerState(), Transport()
    protocol = connected(transport, state)
    protocol.data_received(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % fields)
    assert transport.closed
    assert not state.tasks
    protocol.connection_lost(None)


async def test_the_chunks_of_a_large_body_are_no_trailers() -> None:
    """Each packet here ends with the size of a chunk, and the next one begins with that chunk."""
    state, transport = ServerState(), Transport()
    protocol = connected(transport, state)
    protocol.data_received(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9000\r\n")
    for _ in range(8):
        protocol.data_received(b"x" * 0x9000 + b"\r\n9000\r\n")
    assert not transport.closed
    protocol.connection_lost(None)
    await asyncio.gather(*state.tasks)


# --- HTTP/1.0 ---


STREAM = (
    b"POST /predictions/m HTTP/1.0\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nstream"
)


def streamed(server: Server, *pieces: bytes) -> bytes:
    """The body of an answer that came without chunks."""
    with Client(server) as client:
        client.send(*pieces)
        head, _, body = client.rest().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    return body


def test_a_stream_for_http_1_0_has_no_chunks(server: Server) -> None:
    assert streamed(server, STREAM) == b"a b end"
    assert streamed(server, *split(STREAM)) == b"a b end"


@pytest.mark.parametrize("options", [(), ("--cors_allowed_origin", "*")], ids=["", "browsers"])
def test_a_stream_that_breaks_is_logged_with_the_handlers_traceback_alone(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    make_archive(tmp_path / "m.mar", {"handler.py": HANDLER})
    request = STREAM.replace(b"HTTP/1.0", b"HTTP/1.1").replace(b"\r\n\r\nstream", b"\r\n\r\nbroken")
    with Server(tmp_path, *options) as server:
        assert streamed(server, STREAM) == b"a b end"  # also from a server for browsers
        for pieces in ([request], split(request)):
            with Client(server) as client:
                client.send(*pieces)
                assert client.rest().endswith(b"\r\n\r\n2\r\na \r\n")
    assert server.log.count("Traceback") == server.log.count("ValueError: half way") // 2 == 2
    assert server.log.count("WARNING kserve_torch.http.protocol: a response was aborted") == 2
    assert "uvicorn" not in server.log


GET = b"GET /v1/models/m HTTP/1.0\r\nConnection: %b\r\n\r\n"


@pytest.mark.parametrize("asked", ["Keep-Alive", "keep-alive, TE"])
def test_http_1_0_clients_may_stay_connected(server: Server, asked: str) -> None:
    with Client(server) as client:
        for row in ("a", "b"):
            client.send(post(row, "1.0", f"Connection: {asked}"))
            status, headers, body = client.answer()
            assert (status, headers["connection"], body) == (200, "keep-alive", predicted(row))
            client.send(GET % asked.encode())
            status, headers, _ = client.answer()
            assert (status, headers["connection"]) == (200, "keep-alive")
        client.send(post("c", "1.0"))
        assert client.answer()[1]["connection"] == "close"
        assert client.ended()


def test_http_1_0_clients_get_no_interim_answer(server: Server) -> None:
    """RFC 9110 10.1.1; one of HTTP/1.1 gets it."""
    with Client(server) as older, Client(server) as newer:
        for client, version in ((older, "1.0"), (newer, "1.1")):
            head, body = split(post("a", version, "Expect: 100-continue"))
            client.send(head)
        assert newer.lines(1) == [b"HTTP/1.1 100 Continue"]
        older.send(body)
        assert older.lines(1) == [b"HTTP/1.1 200 OK"]


def test_http_1_0_clients_that_pipeline_are_answered_in_turn(server: Server) -> None:
    with Client(server) as client:
        client.send(*(post(row, "1.0", "Connection: keep-alive") for row in "abc"))
        assert [client.answer()[2] for _ in range(3)] == [predicted(row) for row in "abc"]


@pytest.mark.parametrize(
    "sent",
    [
        GET % b"close",
        GET % b"keep-alive, close",
        GET % b"TE\r\nProxy-Connection: keep-alive",
        b"POST /v1/models/m:predict HTTP/1.0\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: keep-alive\r\n\r\n0\r\n\r\n",
        STREAM.replace(b"\r\n\r\n", b"\r\nConnection: Keep-Alive\r\n\r\n"),
    ],
)
def test_http_1_0_connections_that_cannot_stay(server: Server, sent: bytes) -> None:
    with Client(server) as client:
        client.send(sent)
        head, _, _ = client.rest().lower().partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert b"keep-alive" not in head


def test_http_1_0_connections_end_with_a_refusal(server: Server) -> None:
    head = b"POST /v1/models/m:predict HTTP/1.0\r\nConnection: keep-alive\r\n"
    with Client(server) as client:
        client.send(head + b"Content-Length: 99999999\r\n\r\n")
        status, headers, _ = client.answer()
    assert (status, headers["connection"]) == (413, "close")


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_other_answers_for_http_1_0(server: Server, method: bytes) -> None:
    with Client(server) as client:
        client.send(b"%b /v1/models/m HTTP/1.0\r\n\r\n" % method)
        head, _, body = client.rest().partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    assert length > 0
    assert len(body) == (length if method == b"GET" else 0)


def test_head_has_no_body(server: Server) -> None:
    with Client(server) as client:
        for method in (b"HEAD", b"HEAD", b"GET"):
            client.send(b"%b /v1/models/m HTTP/1.1\r\nHost: m\r\n\r\n" % method)
        heads = [client.head() for _ in range(2)]
        status, headers, body = client.answer()
    assert {status for status, _ in heads} == {status} == {200}
    assert {headers["content-length"] for _, headers in heads} == {headers["content-length"]}
    assert len(body) == int(headers["content-length"]) > 0


# --- clients that leave ---


def metric(server: Server, start: str) -> float:
    """The sum of the samples whose lines begin so."""
    lines = httpx.get(f"{server.url}/metrics", trust_env=False).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def test_a_client_that_leaves_is_missed_whatever_it_asked_for_behind(
    server: Server, pipe: Path
) -> None:
    cancelled = 'requests_failed_total{model_name="m",model_version="1.0",error="Cancelled"}'
    before = metric(server, cancelled)
    with Client(server) as client:
        client.send(b"POST /predictions/m HTTP/1.1\r\nHost: m\r\nContent-Length: 4\r\n")
        client.send(b"Expect: 100-continue\r\n\r\n")
        assert client.lines(2) == [b"HTTP/1.1 100 Continue", b""]
        client.send(b"wait" + post("behind"))
        until(lambda: metric(server, "inflight_requests") == 1)
        watched = time.monotonic() + 3 * WATCH_AFTER  # nothing tells that it has begun
        until(lambda: time.monotonic() > watched)
    until(lambda: metric(server, cancelled) == before + 1)
    until(lambda: re.search(r"status=499 .* batch=1 .* handler_ms=[1-9]", server.log) is not None)
    pipe.open("w").close()


@pytest.mark.parametrize("method", [b"POST", b"PUT"])  # only a POST can take the short way
def test_a_client_that_leaves_in_mid_stream_is_missed(
    server: Server, pipe: Path, method: bytes
) -> None:
    missed = "protocol=native model=m version=1.0 status=499"  # others may have left just before
    before = server.log.count(missed)
    with Client(server) as client:
        client.send(b"%b /predictions/m HTTP/1.1\r\nContent-Type: text/plain\r\n" % method)
        client.send(b"Content-Length: 8\r\n\r\nunending")
        while client.lines(1) != [b"a"]:
            pass
    until(lambda: server.log.count(missed) == before + 1)
    pipe.open("w").close()


def test_connections_that_clients_reset_are_forgotten(server: Server) -> None:
    for _ in range(20):
        with Client(server) as client:
            client.send(post("a"))
            client.answer()
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with Client(server) as client:

        def known() -> int:
            client.send(post("GuardedProtocol"))
            return int(json.loads(client.answer()[2])["predictions"][0])

        until(lambda: 1 <= known() < 20)  # this one is known
