"""Sends an `Answer` over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from kserve_torch.http.call import Answer

if TYPE_CHECKING:
    from starlette.types import Receive, Send

#: Statuses of answers that have no body (RFC 9110 6.4.1).
BODILESS = (204, 205, 304)

#: Seconds for which a refused body is still read: closing a connection with unread data resets it,
#: and the client may lose the answer.
LINGER_SECONDS = 2.0


async def respond(send: Send, answer: Answer, close: bool) -> None:
    """Send an answer, whole or in pieces; uvicorn leaves the body out if the request was HEAD.

    Args:
        send: of ASGI.
        answer: what is sent.
        close: whether to close the connection even if the answer does not say so.
    """
    if answer.status in BODILESS:
        answer = Answer(status=answer.status, content_type=None, headers=answer.headers)
    await _start(send, answer, close or answer.close)
    body = answer.body
    if isinstance(body, bytes):
        await send({"type": "http.response.body", "body": body})
        return
    async with aclosing(body):
        async for chunk in body:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def refuse(send: Send, answer: Answer, receive: Receive) -> None:
    """Answer a request whose body was refused, and close the connection."""
    await _start(send, answer, close=True)
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, answer: Answer, close: bool) -> None:
    headers = unsized_headers(answer.content_type, answer.headers, close)
    if isinstance(answer.body, bytes) and answer.status not in BODILESS:
        headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})


def unsized_headers(
    content_type: str | None, headers: Iterable[tuple[str, str]], close: bool
) -> list[tuple[bytes, bytes]]:
    """The headers of an answer but its length; ``close`` says whether the connection is closed."""
    raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers]
    if content_type is not None:
        raw.append((b"content-type", content_type.encode("latin-1")))
    if close:
        raw.append((b"connection", b"close"))
    return raw
