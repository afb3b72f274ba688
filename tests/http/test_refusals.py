from __future__ import annotations

from typing import Any

import httpx
import pytest

from kserve_torch.http.refusals import over_limit

TEXT = "2 connections are open (max_connections)"
NATIVE = {"code": 503, "type": "ServiceUnavailableException", "message": TEXT}


async def refused(path: str) -> httpx.Response:
    """The answer on a connection over the limit."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the application was called")

    transport = httpx.ASGITransport(over_limit(app, 2))
    async with httpx.AsyncClient(transport=transport, base_url="http://m") as client:
        return await client.get(path)


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
    refusal = await refused(path)
    assert (refusal.status_code, refusal.json()) == (503, answer)
    assert refusal.headers["retry-after"] == "1"
    assert refusal.headers["connection"] == "close"
    assert ("x-request-id" in refusal.headers) == (answer is NATIVE)
