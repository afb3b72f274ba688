"""Browsers' questions, asked before a page of another origin may call."""

from typing import Any

import httpx
import pytest

from kserve_torch.http.cors import with_cors
from kserve_torch.settings import Settings

OTHERS = ("access-control-expose-headers", "vary")
ALLOWED = {"origin": "https://a.example", "access-control-request-method": "POST"}


async def told(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"Access-Control-Allow-Headers", b"X-Its")] if scope["path"] == "/its" else []
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"told"})


async def ask(
    method: str, headers: dict[str, str], path: str = "/v1/models/m:predict", **settings: Any
) -> httpx.Response:
    app = with_cors(told, Settings(cors_allowed_origin="https://a.example", **settings))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://m") as client:
        return await client.request(method, path, headers=headers)


async def test_a_page_of_a_configured_origin_may_ask_and_call() -> None:
    asked, called = await ask("OPTIONS", ALLOWED), await ask("POST", ALLOWED)
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert (asked.text, called.text) == ("OK", "told")
    for answer in (asked, called):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://a.example"


async def test_a_page_may_read_the_headers_that_it_needs() -> None:
    answer = await ask("POST", ALLOWED)
    readable = answer.headers["access-control-expose-headers"].split(", ")
    assert readable == ["Inference-Header-Content-Length", "Retry-After", "X-Request-Id"]


@pytest.mark.parametrize(
    ("headers", "what"),
    [
        ({"origin": "https://b.example"}, "origin"),
        ({"access-control-request-method": "PATCH"}, "method"),
        ({"access-control-request-headers": "x-own"}, "headers"),
    ],
)
async def test_a_refusal_is_json(headers: dict[str, str], what: str) -> None:
    answer = await ask("OPTIONS", {**ALLOWED, **headers})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert answer.json() == {"error": f"Disallowed CORS {what}"}
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "access-control-allow-methods" in answer.headers


async def test_headers_may_be_configured() -> None:
    headers = {**ALLOWED, "access-control-request-headers": "x-own"}
    answer = await ask("OPTIONS", headers, cors_allowed_headers="X-Own, X-Other")
    assert answer.status_code == 200


async def test_methods_may_be_configured() -> None:
    assert (await ask("OPTIONS", ALLOWED, cors_allowed_methods="GET")).status_code == 400


async def test_what_is_configured_is_on_every_answer() -> None:
    settings = {"cors_allowed_methods": "GET, POST", "cors_allowed_headers": "X-Own"}
    for headers in ({}, {"origin": "https://b.example"}):
        answer = await ask("POST", headers, **settings)
        assert {name: answer.headers[name] for name in answer.headers if name not in OTHERS} == {
            "access-control-allow-origin": "https://a.example",
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "X-Own",
        }
    called = await ask("POST", ALLOWED, **settings)
    assert called.headers.get_list("access-control-allow-origin") == ["https://a.example"]
    its = await ask("POST", {}, "/its", **settings)
    assert its.headers.get_list("access-control-allow-headers") == ["X-Its"]


def test_without_an_origin_nothing_is_added() -> None:
    assert with_cors(told, Settings()) is told
