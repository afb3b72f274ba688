"""Errors that a connection answers by itself, without the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from kserve_torch.codec.document import JSON
from kserve_torch.errors import Overloaded
from kserve_torch.http.app import error_answer
from kserve_torch.http.call import Call, json_answer
from kserve_torch.http.sending import refuse, respond

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Answered on every connection: a kubelet whose probe is refused would restart the pod.
_ALWAYS = ("/v2/health/live", "/ping")
#: Headers that say that a request has a body.
_OF_A_BODY = (b"content-length", b"transfer-encoding")


def last_answer(status: int, text: str) -> bytes:
    """The bytes of an answer with an error, after which the connection is closed."""
    body = orjson.dumps({"error": text})
    head = f"content-type: {JSON}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return STATUS_LINE[status] + head.encode() + body


def over_limit(app: ASGIApp, connections: int) -> ASGIApp:
    """The application for a connection over the limit: only liveness probes reach ``app``.

    It is closed after its first answer, and a probe's body is not waited for.

    Args:
        app: the server's.
        connections: how many may be open at a time.
    """
    error = Overloaded(f"{connections} connections are open (max_connections)")

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _ALWAYS:

            async def last(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"].append((b"connection", b"close"))
                await send(message)

            headers = [field for field in scope["headers"] if field[0] not in _OF_A_BODY]
            await app({**scope, "headers": headers}, receive, last)
        else:
            call = Call(method=scope["method"], path=scope["path"])
            await refuse(send, error_answer(call, error), receive)

    return answer


def refusal(status: int, text: str) -> ASGIApp:
    """An application that answers every request with an error and closes the connection."""
    refused = json_answer({"error": text}, status)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, refused, close=True)

    return answer
