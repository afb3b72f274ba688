"""The ASGI application: scopes and messages in, messages out."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from kserve_torch.errors import InvalidInput
from kserve_torch.events import Responded
from kserve_torch.http import body, sending
from kserve_torch.http.app import MANAGEMENT, METRICS, App
from kserve_torch.http.call import Answer, Call
from kserve_torch.tokens import Tokens

from ..threads import Readers

ROLES: Mapping[int | str, frozenset[str]] = {
    1: frozenset({"inference"}),
    2: frozenset({"inference", MANAGEMENT}),
    3: frozenset({METRICS}),
    "/run/socket": frozenset({"inference", MANAGEMENT}),
}
LIMIT = 100


async def told(call: Call) -> Answer | None:
    """Answers ``/told`` with what came in; other paths do other things."""
    if call.path == "/stream":
        return Answer(body=_parts(), content_type="text/plain")
    if call.path in ("/fails", "/v2/fails"):
        raise ValueError("nobody foresaw this")
    if call.path == "/v2/refuses":
        raise InvalidInput("no")
    if call.path == "/empty":
        return Answer(status=204, body=b"x")
    if call.path != "/told":
        return None
    body = [call.method, call.body.decode(), call.query, call.management]
    return Answer(body=orjson.dumps(body), headers=[("x-own", "é")])


async def _parts() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


async def metrics(call: Call) -> Answer | None:
    return Answer(body=b"m 1", content_type="text/plain") if "metrics" in call.path else None


def app(**options: Any) -> App:
    return App((told,), metrics, ROLES, LIMIT, **options)


Sent = tuple[int, dict[str, str], bytes]


def scope(
    path: str,
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (),
    server: tuple[str, int | None] = ("127.0.0.1", 1),
) -> dict[str, Any]:
    """What an ASGI server says of a request."""
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"q=1",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "server": server,
        "client": ("127.0.0.9", 5),
    }


async def exchange(
    app: App,
    path: str,
    *chunks: bytes,
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (("transfer-encoding", "chunked"),),
    server: tuple[str, int | None] = ("127.0.0.1", 1),
) -> Sent:
    """Status, headers and body of one exchange; the body is sent in ``chunks``."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    for i, chunk in enumerate(chunks or (b"",)):
        more = i + 1 < len(chunks)
        incoming.put_nowait({"type": "http.request", "body": chunk, "more_body": more})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if sent and incoming.empty():  # a client that has its answer leaves
            return {"type": "http.disconnect"}
        return await incoming.get()

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope(path, method, headers, server), receive, send)
    start, *bodies = sent
    named = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    assert not bodies[-1].get("more_body")
    return start["status"], named, b"".join(message.get("body", b"") for message in bodies)


async def test_a_call_and_its_answer() -> None:
    status, headers, body = await exchange(app(), "/told", b"ab", b"c")
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["x-own"] == "é"
    assert orjson.loads(body) == ["POST", "abc", "q=1", False]


async def test_a_call_begins_with_the_last_byte_of_its_body() -> None:
    seen: list[Call] = []
    came = 0.0

    async def receive() -> dict[str, Any]:
        nonlocal came
        more, came = not came, time.perf_counter()
        return {"type": "http.request", "body": b"a", "more_body": more}

    async def send(message: dict[str, Any]) -> None:
        pass

    async def route(call: Call) -> Answer:
        seen.append(call)
        return Answer()

    headers = [(b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    await App((route,), metrics, ROLES, LIMIT)(scope, receive, send)
    (call,) = seen
    assert (call.body, call.began > came) == (b"aa", True)


@pytest.mark.parametrize(
    ("server", "management"),
    [
        (("127.0.0.1", 1), False),
        (("127.0.0.1", 2), True),
        (("/run/socket", None), True),
        (("127.0.0.1", 99), False),
    ],
)
async def test_the_socket_decides_what_answers(
    server: tuple[str, int | None], management: bool
) -> None:
    _, _, body = await exchange(app(), "/told", server=server)
    assert orjson.loads(body)[3] is management


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
async def test_metrics(path: str) -> None:
    for port in (1, 2, 3):
        server = ("127.0.0.1", port)
        sent = await exchange(app(), path, method="GET", server=server)
        assert (sent[0], sent[2]) == (200, b"m 1")
    assert (await exchange(app(), "/told", server=("127.0.0.1", 3)))[0] == 404


async def test_no_route_is_told_in_the_words_of_the_path() -> None:
    for path in ("/v1/x", "/v2/x"):
        status, _, body = await exchange(app(), path)
        assert (status, list(orjson.loads(body))) == (404, ["error"])
    status, _, body = await exchange(app(), "/x")
    assert (status, orjson.loads(body)) == (
        404,
        {
            "code": 404,
            "type": "ResourceNotFoundException",
            "message": "Requested resource is not found, please refer to API document.",
        },
    )


async def test_errors_of_no_native_route_have_the_headers_of_one() -> None:
    for path in ("/x", "/fails"):
        _, headers, _ = await exchange(app(), path)
        assert uuid.UUID(headers["x-request-id"])
        assert (headers["pragma"], headers["connection"]) == ("no-cache", "close")
    _, headers, _ = await exchange(app(), "/v1/x")
    assert not headers.keys() & {"x-request-id", "pragma", "connection"}


async def test_errors_that_no_route_turned_into_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    status, _, body = await exchange(app(), "/fails")
    assert status == 500
    assert b"nobody foresaw" not in body
    answer = await exchange(app(), "/v2/fails")
    assert answer[::2] == (500, b'{"error":"Internal error: ValueError"}')
    assert [record.exc_info is not None for record in caplog.records] == [True] * 2
    assert (await exchange(app(), "/v2/refuses"))[::2] == (400, b'{"error":"no"}')


@pytest.mark.parametrize(
    ("method", "path", "opened_by"),
    [
        ("POST", "/v1/models/m:predict", ["inference"]),
        ("POST", "/v2/models/m/infer", ["inference"]),
        ("POST", "/v2/repository/models/m/load", ["management"]),
        ("POST", "/v2/repository/index", ["none", "inference", "management"]),
        ("GET", "/v1/models/m", ["none", "inference", "management"]),
        ("GET", "/v2/models/m/ready", ["none", "inference", "management"]),
    ],
)
async def test_keys_of_kserves_routes(
    tmp_path: Path, method: str, path: str, opened_by: list[str]
) -> None:
    tokens = Tokens(tmp_path, lifetime=60)
    keys = json.loads((tmp_path / "key_file.json").read_text())
    opened = []
    for name in ("none", "inference", "management"):
        key = keys[name]["key"] if name in keys else "none"
        headers = [("authorization", f"Bearer {key}"), ("transfer-encoding", "chunked")]
        status, _, _ = await exchange(app(tokens=tokens), path, method=method, headers=headers)
        if status == 404:  # no route of these has the path
            opened.append(name)
    assert opened == opened_by


async def test_large_bodies_are_decompressed_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = Readers(monkeypatch)
    headers = [("transfer-encoding", "chunked"), ("content-encoding", "gzip")]
    _, _, body = await exchange(app(), "/told", gzip.compress(b"abc"), headers=headers)
    assert orjson.loads(body)[1] == "abc"
    assert readers.works == ["decode_body"]


async def test_codings() -> None:
    headers = [("transfer-encoding", "chunked"), ("content-encoding", "gzip")]
    twice = [*headers, ("Content-Encoding", "deflate")]
    body = zlib.compress(gzip.compress(b"abc"))
    assert orjson.loads((await exchange(app(), "/told", body, headers=twice))[2])[1] == "abc"
    assert (await exchange(app(), "/told", b"", headers=headers))[0] == 200


@pytest.mark.parametrize(
    ("coding", "body", "status", "error"),
    [
        ("gzip", gzip.compress(b"x" * (LIMIT + 1), mtime=0), 413, "PayloadTooLarge"),
        ("gzip", b"abc", 400, "InvalidInput"),
        ("br", b"abc", 415, "UnsupportedContent"),
        ("", b"x" * (LIMIT + 1), 413, "PayloadTooLarge"),
    ],
)
async def test_bodies_that_are_not_taken_are_told_of(
    coding: str, body: bytes, status: int, error: str
) -> None:
    headers = [("content-encoding", coding), ("transfer-encoding", "chunked")]
    for path, protocol in (("/v2/x", "v2"), ("/v1/x", "v1"), ("/told", "native")):
        events: list[Responded] = []
        own = [("x-request-id", "7"), *headers]
        sent = await exchange(app(refused=events.append), path, body, headers=own)
        [event] = events
        assert (event.protocol, event.status, event.error) == (protocol, status, error)
        assert (event.model, event.version) == ("", "")
        assert event.request_id == sent[1].get("x-request-id", "7")
        assert sent[0] == status


async def test_headers_say_nothing_of_a_coding_that_is_undone() -> None:
    seen: list[Mapping[str, str]] = []

    async def see(call: Call) -> Answer:
        seen.append(call.headers)
        return Answer()

    packed = gzip.compress(b"abc")
    headers = [("Content-Encoding", "gzip"), ("Content-Length", str(len(packed))), ("x-own", "1")]
    await exchange(App((see,), metrics, ROLES, LIMIT), "/told", packed, headers=headers)
    assert dict(seen[0]) == {"content-length": "3", "x-own": "1"}


async def with_body_from(incoming: asyncio.Queue[dict[str, Any]], app: App) -> dict[str, Any]:
    """The head of the answer to a request whose body comes from a queue."""
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "LINGER_SECONDS", 0.01)
        await app(scope("/told", headers=[("content-length", "2")]), incoming.get, send)
    return sent[0]


async def test_a_body_that_does_not_come() -> None:
    head = await with_body_from(asyncio.Queue(), app(body_seconds=0.01))
    assert head["status"] == 408
    assert (b"connection", b"close") in head["headers"]


async def test_a_body_that_comes_slowly_but_steadily_has_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(body, "LEAST_RATE", 0.01)  # so a byte is worth 100 s
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    rest = {"type": "http.request", "body": b"y", "more_body": False}
    asyncio.get_running_loop().call_later(0.4, incoming.put_nowait, rest)
    assert (await with_body_from(incoming, app(body_seconds=0.3)))["status"] == 200


async def test_a_client_that_leaves_before_its_body_is_there() -> None:
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": b"x", "more_body": True})
    incoming.put_nowait({"type": "http.disconnect"})
    events: list[Responded] = []
    await with_body_from(incoming, app(body_seconds=30, refused=events.append))
    assert [(event.status, event.error) for event in events] == [(499, "ClientLeft")]


async def test_streams_and_answers_without_a_body() -> None:
    status, headers, body = await exchange(app(), "/stream")
    assert (status, body) == (200, b"ab")
    assert "content-length" not in headers
    status, headers, body = await exchange(app(), "/empty")
    assert (status, body) == (204, b"")
    assert not headers.keys() & {"content-length", "content-type"}


async def test_a_draining_server_closes_connections() -> None:
    _, headers, _ = await exchange(app(draining=lambda: True), "/told")
    assert headers["connection"] == "close"
    _, headers, _ = await exchange(app(draining=lambda: False), "/told")
    assert "connection" not in headers
