"""Requests that come as a whole, and the same ones in pieces: bytes in and out, on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from kserve_torch.http import whole
from kserve_torch.http.call import Answer

from ..makers import make_archive
from ..server import Server
from .raw import Client, post, predicted

HANDLER = """
def handle(data, context):
    if data is None:
        return None
    row = data[0]
    if isinstance(row, dict):
        return ["HTTP/1.1 200 OK\\r\\n\\r\\n"] * len(data)
    if row == "header":
        context.set_response_header(0, "x-own", "yes")
    if row == "smuggled":
        context.set_response_header(0, "x-own", "a\\r\\nb: c")
    return [row] * len(data)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("whole")
    make_archive(folder / "m.mar", {"handler.py": HANDLER})
    with Server(folder) as running:
        yield running


def test_whole_and_in_pieces_they_are_answered_alike(server: Server) -> None:
    request = post("a")
    head = request.index(b"\r\n\r\n") + 4
    with Client(server) as client:
        answers = []
        for pieces in ([request], [request[:head], request[head:]], [request[:20], request[20:]]):
            client.send(*pieces)
            answers.append(client.answer())
    for status, headers, body in answers:
        assert (status, body) == (200, predicted("a"))
        assert set(headers) == {"date", "content-type", "content-length"}
        assert headers["content-type"] == "application/json"


def test_requests_of_one_packet_are_answered_in_order(server: Server) -> None:
    rows = [f"row {i}" for i in range(100)]
    with Client(server) as client:
        client.send(b"".join(post(row) for row in rows))
        assert [client.answer()[2] for _ in rows] == [predicted(row) for row in rows]


@pytest.mark.parametrize(
    "request_", [post("a", "1.0"), post("a", "1.1", "Connection: close")], ids=["1.0", "close"]
)
def test_a_connection_that_is_not_to_be_kept_is_closed(server: Server, request_: bytes) -> None:
    with Client(server) as client:
        client.send(request_)
        status, headers, body = client.answer()
        assert (status, body, headers["connection"]) == (200, predicted("a"), "close")
        assert client.ended()


def test_a_client_that_asks_whether_it_may_go_on(server: Server) -> None:
    request = post("a", "1.1", "Expect: 100-continue")
    head = request.index(b"\r\n\r\n") + 4
    with Client(server) as client:
        client.send(request[:head])
        assert client.sock.recv(100).startswith(b"HTTP/1.1 100 ")
        client.send(request[head:])
        assert client.answer()[2] == predicted("a")


def test_headers_of_the_handler(server: Server) -> None:
    with Client(server) as client:
        client.send(post("header"))
        status, headers, _ = client.answer()
        assert (status, headers["x-own"]) == (200, "yes")
        client.send(post("smuggled"))
        status, headers, body = client.answer()
        assert (status, "b" in headers, "x-own" in headers) == (500, False, False)
        assert b"header" in body
        client.send(post("a"))
        assert client.answer()[0] == 200


def test_an_answer_that_looks_like_a_head_is_not_kept_back(server: Server) -> None:
    with Client(server) as client:
        client.send(b"POST /predictions/m HTTP/1.1\r\nHost: m\r\nContent-Length: 1\r\n\r\n1")
        status, _, body = client.answer()
        assert (status, body) == (200, b"HTTP/1.1 200 OK\r\n\r\n")


def test_what_is_refused_keeps_the_connection(server: Server) -> None:
    with Client(server) as client:
        for path, expected in ((b"/v1/models/m:predict", 400), (b"/v1/models/none:predict", 404)):
            client.send(b"POST %b HTTP/1.1\r\nHost: m\r\nContent-Length: 1\r\n\r\n{" % path)
            status, _, body = client.answer()
            assert status == expected
            assert body.startswith(b'{"error":')
        client.send(post("a"))
        assert client.answer()[0] == 200


def test_an_answer_that_says_that_the_connection_closes_closes_it(server: Server) -> None:
    with Client(server) as client:
        client.send(b"POST /predictions/none HTTP/1.1\r\nHost: m\r\nContent-Length: 1\r\n\r\n1")
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (404, "close")
        assert client.ended()


def test_a_large_answer_is_complete(server: Server) -> None:
    row = "a" * 2 * whole.COPIED
    with Client(server) as client:
        client.send(post(row), post("b"))
        assert [client.answer()[2] for _ in range(2)] == [predicted(row), predicted("b")]


def asked(written: list[bytes]) -> Any:
    """A request, of which the answer is appended to ``written``."""
    transport: Any = SimpleNamespace(
        write=written.append,
        writelines=written.extend,
        pause_reading=lambda: None,
        resume_reading=lambda: None,
    )
    return SimpleNamespace(
        disconnected=False,
        keep_alive=True,
        scope={"http_version": "1.1", "method": "POST"},
        body=bytearray(b"a"),
        more_body=False,
        default_headers=[],
        transport=transport,
        flow=FlowControl(transport),
        on_response=lambda: None,
    )


@pytest.mark.parametrize("header", [(b"x-own", b"a\r\nb: c"), (b"b: c\r\nx-own", b"a")])
def test_nobody_smuggles_a_header(header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        whole._lines([header])


@pytest.mark.parametrize("most", [0, 1])
def test_a_body_over_the_limit_goes_where_it_is_refused(most: int) -> None:
    app: Any = SimpleNamespace(max_body=most)
    assert whole.is_whole(asked([]), app) is (most == 1)


def test_a_large_answer_is_not_copied() -> None:
    body = bytes(whole.COPIED + 1)
    written: list[bytes] = []
    whole._write(asked(written), Answer(), body, close=False)
    assert written[1] is body


async def test_a_connection_is_read_on_at_once_and_written_to_once_it_has_room() -> None:
    written: list[bytes] = []
    cycle = asked(written)
    cycle.flow.pause_reading()
    cycle.flow.pause_writing()
    called = asyncio.Event()

    async def answer(scope: object, body: bytes) -> Answer:
        assert (body, cycle.flow.read_paused) == (b"a", False)
        called.set()
        return Answer()

    app: Any = SimpleNamespace(answer=answer, draining=lambda: False)
    answering = asyncio.create_task(whole.answer_whole(cycle, app))
    await called.wait()
    await asyncio.sleep(0)
    assert written == []
    cycle.flow.resume_writing()
    await answering
    assert len(written) == 1
