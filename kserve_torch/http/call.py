"""One HTTP request and its response as values: a `Call` comes in, an `Answer` goes out.

Endpoints are ``async (Call) -> Answer``; only `http.app` and `http.sending` know ASGI. Each
protocol has one function that turns errors into answers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import orjson

from kserve_torch.codec.document import JSON
from kserve_torch.messages import NOTHING

#: The header that says how a body is compressed.
CODING = "content-encoding"


def headers_of(raw: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """Request headers, of whose names, in lower case, the last value wins.

    Only the values of content-encoding are joined, because all must be decoded (RFC 9110 5.3).
    """
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if CODING in headers:
        codings = (value.decode("latin-1") for name, value in raw if name == CODING.encode())
        headers[CODING] = ", ".join(codings)
    return headers


@dataclass(slots=True, kw_only=True)
class Call:
    """One HTTP request, its body read.

    Attributes:
        method: upper case.
        path: percent-decoded path.
        headers: see `headers_of`.
        body: the whole body, decoded from its content coding.
        query: the raw query string.
        management: whether it came in on a socket where the management API answers.
        metrics_only: whether only the metrics answer on that socket.
        began: ``time.perf_counter()`` when its last byte had arrived.
        told: whether `Serve` has reported how it ended.
    """

    method: str
    path: str
    headers: Mapping[str, str] = NOTHING
    body: bytes = b""
    query: str = ""
    management: bool = False
    metrics_only: bool = False
    began: float = field(default_factory=time.perf_counter)
    told: bool = False

    def params(self) -> dict[str, str]:
        """Query parameters; the last of several with one name wins."""
        return dict(parse_qsl(self.query, keep_blank_values=True))

    def content_type(self) -> str:
        """The media type in lower case, without its parameters; "" if the header is absent."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(slots=True, kw_only=True)
class Answer:
    """One HTTP response.

    Attributes:
        body: the bytes, or chunks of a streamed body.
        headers: name and value pairs beside the content type and length.
        close: whether the connection ends with it.
    """

    status: int = 200
    body: bytes | AsyncGenerator[bytes] = b""
    content_type: str | None = JSON
    headers: Sequence[tuple[str, str]] = ()
    close: bool = False


#: Takes a `Call` and the groups of the path's pattern.
Endpoint = Callable[..., Awaitable[Answer]]


def json_answer(value: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    """An answer whose body is ``value`` as compact JSON."""
    return Answer(status=status, body=orjson.dumps(value), headers=headers)
