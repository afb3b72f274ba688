"""What a client may cost: sizes of heads and bodies, slow senders, the number of connections."""

import gzip
import json
import resource
import socket
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psutil
import pytest

from .actor import NATIVE, PROTOCOLS, V1, Client, store_of, talking_to, until

BODY = 300_000
PATIENCE = 1.0
CONNECTIONS = 20
#: Letters of an answer that fits into no buffer.
LONG = 30_000_000
LIMITS = (
    *("--max_request_size", str(BODY), "--receive_timeout", str(PATIENCE)),
    *("--grpc_max_receive_message_length", str(BODY), "--max_connections", str(CONNECTIONS)),
    *("--max_response_size", str(2 * LONG)),
)
PATHS = {"v1": "/v1/models/m:predict", "v2": "/v2/models/m/infer", "native": "/predictions/m"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = store_of(tmp_path_factory.mktemp("store"), m="")
    with talking_to(store, *LIMITS) as client:
        yield client


@pytest.fixture(autouse=True)
def _serves_on(client: Client) -> Iterator[None]:
    yield
    for protocol in PROTOCOLS:
        assert client.ask(protocol, "m", "say on").ok


def connect(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.server.ports["http"]), 20)


def everything(sock: socket.socket) -> bytes:
    """What comes until the server closes; it resets if there is something that it did not take."""
    received = b""
    with suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            received += chunk
    return received


def exchange(client: Client, *sent: bytes) -> tuple[int, dict[str, object], bytes]:
    """Status, JSON and head of the answer to raw bytes; the server must close afterwards."""
    with closing(connect(client)) as sock:
        for part in sent:
            sock.sendall(part)
        head, _, body = everything(sock).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body), head.lower()


def right_form(protocol: str, error: object, status: int) -> bool:
    assert isinstance(error, dict)
    if protocol == NATIVE:
        return list(error) == ["code", "type", "message"] and error["code"] == status
    return list(error) == ["error"]


@pytest.mark.parametrize("protocol", PATHS)
def test_a_body_that_says_it_is_too_large(client: Client, protocol: str) -> None:
    answer = client.http.post(PATHS[protocol], content=b"x" * (4 * BODY))
    assert answer.status_code == 413
    assert right_form(protocol, answer.json(), 413)
    assert str(BODY) in answer.text


@pytest.mark.parametrize("protocol", PATHS)
def test_a_body_that_is_refused_is_logged_and_counted(client: Client, protocol: str) -> None:
    labels = {"protocol": protocol, "code": "413"}
    before = client.metric("requests", **labels)
    client.http.post(PATHS[protocol], content=b"x" * (4 * BODY))
    assert client.metric("requests", **labels) == before + 1
    line = f"protocol={protocol} model=- version=- status=413"
    until(lambda: line in client.server.log)


@pytest.mark.parametrize("protocol", PATHS)
def test_a_body_that_turns_out_too_large(client: Client, protocol: str) -> None:
    chunks = (b"x" * 10_000 for _ in range(4 * BODY // 10_000))
    answer = client.http.post(PATHS[protocol], content=chunks)
    assert answer.status_code == 413
    assert right_form(protocol, answer.json(), 413)


def test_a_client_that_first_sends_all_of_what_is_too_large(client: Client) -> None:
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\ncontent-length: 40000000\r\n\r\n"
    status, error, _ = exchange(client, head, *[bytes(1_000_000)] * 40)
    assert (status, list(error)) == (413, ["error"])


@pytest.mark.parametrize("length", [BODY, BODY + 1])
def test_the_limit_is_exact(client: Client, length: int) -> None:
    body = b"say " + b"x" * (length - 4)
    assert client.http.post(PATHS["native"], content=body).status_code == (
        200 if length == BODY else 413
    )


def test_a_body_is_not_asked_for_if_it_is_too_large(client: Client) -> None:
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n"
    status, error, _ = exchange(client, head + b"content-length: %d\r\n\r\n" % (BODY + 1))
    assert (status, list(error)) == (413, ["error"])


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("protocol", PATHS)
def test_a_bomb_is_not_blown_up(client: Client, protocol: str, coding: str) -> None:
    compress = gzip.compress if coding == "gzip" else zlib.compress
    bomb = compress(b" " * (200 * BODY), 9)
    assert len(bomb) < BODY
    answer = client.http.post(PATHS[protocol], content=bomb, headers={"content-encoding": coding})
    assert answer.status_code == 413
    assert right_form(protocol, answer.json(), 413)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\nx-long: " + b"x" * 100_000,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nhost: x",
        b"GET / HTTP/1.1\r\nhost: x\r\n" + b"\r\n".join(b"x-%d: y" % i for i in range(10_000)),
    ],
    ids=["long", "path", "many"],
)
@pytest.mark.parametrize("end", [b"\r\n\r\n", b""], ids=["complete", "endless"])
def test_a_head_that_is_too_large(client: Client, head: bytes, end: bytes) -> None:
    status, error, answer = exchange(client, head + end)
    assert (status, list(error)) == (431, ["error"])
    assert b"connection: close" in answer


def headers_that_do_not_come(client: Client) -> None:
    began = time.monotonic()
    status, error, _ = exchange(client, b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\nx-")
    assert (status, list(error)) == (408, ["error"])
    assert PATIENCE * 0.9 < time.monotonic() - began < PATIENCE + 5


def headers_that_do_not_come_after_an_answer(client: Client) -> None:
    with closing(connect(client)) as sock:
        sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b'{"live":true}'):
            answer += sock.recv(65536)
        sock.sendall(b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\nx-")
        assert everything(sock).startswith(b"HTTP/1.1 408 ")


def trickling(client: Client, head: str, piece: bytes) -> bytes:
    """What is answered to one that sends ``piece`` for ever."""
    ends = time.monotonic() + 20 * PATIENCE
    with closing(connect(client)) as sock:
        sock.sendall(head.encode())
        sock.settimeout(PATIENCE / 20)
        answer = b""
        while not answer:
            assert time.monotonic() < ends, "the server waits for ever"
            sock.sendall(piece)
            with suppress(TimeoutError):
                answer = sock.recv(65536)
        sock.settimeout(20 * PATIENCE)
        answer += everything(sock)
    assert answer.startswith(b"HTTP/1.1 408 ")
    return answer


def headers_that_trickle(client: Client) -> None:
    trickling(client, "GET / HTTP/1.1\r\nhost: x\r\n", b"x-a: b\r\n")


def a_connection_without_a_request(client: Client) -> None:
    with closing(connect(client)) as sock:
        assert everything(sock) == b""


def a_body_that_does_not_come(client: Client, protocol: str) -> None:
    head = f"POST {PATHS[protocol]} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n".encode()
    status, error, _ = exchange(client, head)
    assert status == 408
    assert right_form(protocol, error, 408)


def a_chunk_that_does_not_come(client: Client) -> None:
    head = f"POST {PATHS[V1]} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n"
    status, error, _ = exchange(client, head.encode())
    assert status == 408
    assert "the body did not arrive" in str(error)


def a_body_that_trickles(client: Client, framing: str, piece: bytes) -> None:
    head = f"POST {PATHS[V1]} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n"
    assert b"did not arrive within" in trickling(client, head, piece)


def test_slow_clients(client: Client) -> None:
    """Together: each of them waits for the end of the server's patience."""
    checks: list[tuple[Callable[..., None], *tuple[object, ...]]] = [
        (headers_that_do_not_come,),
        (headers_that_do_not_come_after_an_answer,),
        (headers_that_trickle,),
        (a_connection_without_a_request,),
        *((a_body_that_does_not_come, protocol) for protocol in PATHS),
        (a_chunk_that_does_not_come,),
        (a_body_that_trickles, "content-length: 1000", b" "),
        (a_body_that_trickles, "transfer-encoding: chunked", b"1\r\n \r\n"),
        (an_answer_that_nobody_takes,),
        (a_rest_that_nobody_takes,),
    ]
    with ThreadPoolExecutor(len(checks)) as threads:
        for running in [threads.submit(check, client, *more) for check, *more in checks]:
            running.result()


ASKS_MUCH = (
    f"POST /predictions/m HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    f"content-length: {len(f'long {LONG}')}\r\n\r\nlong {LONG}"
).encode()


def is_open(client: Client, sock: socket.socket) -> bool:
    """Whether the server still holds its end of the connection."""
    port = sock.getsockname()[1]
    connections = psutil.Process(client.server.process.pid).connections("tcp")
    return any(
        end.raddr and end.raddr.port == port and end.status == "ESTABLISHED" for end in connections
    )


def an_answer_that_nobody_takes(client: Client) -> None:
    with closing(connect(client)) as sock:
        sock.sendall(ASKS_MUCH)
        until(lambda: is_open(client, sock))
        until(lambda: not is_open(client, sock))
        received = 0
        with suppress(ConnectionResetError):  # how it ends is the system's affair
            while chunk := sock.recv(1_000_000):
                received += len(chunk)
    assert 0 < received < LONG


def a_rest_that_nobody_takes(client: Client) -> None:
    """The kernel has all of an answer but some KB, too few for the server itself to mind."""
    with ExitStack() as stack:

        def asking(letters: int) -> socket.socket:
            sock = stack.enter_context(closing(connect(client)))
            body = f"long {letters}"
            head = f"POST /predictions/m HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
            sock.sendall(f"{head}\r\n\r\n{body}".encode())
            until(lambda: in_the_kernel(sock))
            return sock

        sock = asking(LONG)
        seen = [in_the_kernel(sock)]
        while is_open(client, sock):
            seen.append(in_the_kernel(sock))
        taken = statistics.mode(seen)
        rests = [asking(taken + rest) for rest in range(4_000, 64_000, 12_000)]
        until(lambda: not any(is_open(client, sock) for sock in rests))


def in_the_kernel(sock: socket.socket) -> int:
    """Bytes that were sent to ``sock`` and are not read, as Linux counts them."""
    ends = [f"0100007F:{port:04X}" for _, port in (sock.getpeername(), sock.getsockname())]
    waiting = 0
    for line in Path("/proc/net/tcp").read_text().splitlines():
        _, near, far, _, queues, *_ = line.split()
        if sorted(ends) == sorted((near, far)):
            sent, received = queues.split(":")
            waiting += int(sent if near == ends[0] else received, 16)
    return waiting


def test_an_answer_that_is_taken_slowly(client: Client) -> None:
    """All of it takes three times the patience; some is taken all the time."""
    steps = 60
    with closing(connect(client)) as sock:
        sock.sendall(ASKS_MUCH)
        began, received = time.monotonic(), 0
        for step in range(steps):
            received += len(sock.recv(LONG // steps, socket.MSG_WAITALL))
            until(lambda due=began + 3 * PATIENCE * step / steps: time.monotonic() > due)
        received += len(everything(sock))
    assert received > LONG


def test_connections_over_the_limit(client: Client) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(closing(connect(client))) for _ in range(CONNECTIONS)]
        request = "GET {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        status, error, head = exchange(client, request.format("/v1/models").encode())
        assert (status, list(error)) == (503, ["error"])
        assert b"retry-after: 1" in head
        status, error, head = exchange(client, request.format("/predictions/m").encode())
        assert right_form(NATIVE, error, 503)
        assert (status, error["type"]) == (503, "ServiceUnavailableException")
        assert b"retry-after: 1" in head
        assert b"x-request-id: " in head
        # A probe that were refused would have the pod restarted.
        for kept in (
            b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n",
            b"POST /ping HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nno",
        ):
            status, _, head = exchange(client, kept)
            assert status == 200
            assert b"connection: close" in head
        assert len(held) == CONNECTIONS


def test_open_files_are_limited_by_the_system_alone(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, limits[1]), limits[1]))
    try:
        with talking_to(store_of(tmp_path, m="")) as client:
            process = psutil.Process(client.server.process.pid)
            assert process.rlimit(psutil.RLIMIT_NOFILE) == (limits[1], limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_client_that_leaves_in_mid_body(client: Client) -> None:
    def noticed() -> float:
        return client.metric("requests_total", protocol="v1", code="499")

    before = noticed()
    for _ in range(CONNECTIONS // 2):
        with closing(connect(client)) as sock:
            sock.sendall(b"POST /v1/models/m:predict HTTP/1.1\r\nhost: x\r\n")
            sock.sendall(b'content-length: 5000\r\n\r\n{"instances": [')
    until(lambda: noticed() == before + CONNECTIONS // 2)
    assert "Traceback" not in client.server.log


def test_head_is_get_without_a_body(client: Client) -> None:
    answer = client.http.head("/v2/health/live")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(b'{"live":true}'))
