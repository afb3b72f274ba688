from __future__ import annotations

from typing import Any

import orjson
import pytest

from kserve_torch.http.refusals import over_limit

TEXT = "2 connections are open (max_connections)"
NATIVE = {"code": 503, "type": "ServiceUnavailableException", "message": TEXT}


async def refused(path: str) -> tuple[int, dict[bytes, bytes], Any]:
    """Status, headers and JSON of the answer on a connection over the limit."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the application was called")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await over_limit(app, 2)({"type": "http", "method": "GET", "path": path}, receive, send)
    start, *parts = sent
    body = b"".join(part["body"] for part in parts)
    return start["status"], dict(start["headers"]), orjson.loads(body)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/models", {"error": TEXT}),
        ("/v2/models/m/infer", {"error": TEXT}),
        ("/predictions/m", NATIVE),
        ("/metrics", NATIVE),
    ],
)
async def test_over_the_limit_every_protocol_has_its_form(path: str, answer: Any) -> None:
    status, headers, body = await refused(path)
    assert (status, body) == (503, answer)
    assert headers[b"retry-after"] == b"1"
    assert headers[b"connection"] == b"close"
    assert (b"x-request-id" in headers) == (answer is NATIVE)
