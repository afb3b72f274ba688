"""One HTTP exchange as values: a `Call` comes in, an `Answer` goes out.

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

#: Where the metrics are, with or without a final slash (CONTRACT N20).
METRICS_PATHS = ("/metrics", "/metrics/")

_CODING = "content-encoding"


class Headers(Mapping[str, str]):
    """Request headers: lookup ignores case, names are in lower case, the last value wins.

    Only the values of content-encoding are joined, because all must be decoded (RFC 9110 5.3).
    """

    __slots__ = ("_raw", "_table")

    def __init__(self, raw: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._raw = raw
        self._table: dict[str, str] | None = None

    def _load(self) -> dict[str, str]:
        if self._table is None:
            self._table = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in self._raw}
            if len(self._table) < len(self._raw) and _CODING in self._table:
                values = [
                    v.decode("latin-1") for k, v in self._raw if k.lower() == _CODING.encode()
                ]
                self._table[_CODING] = ", ".join(values)
        return self._table

    def __getitem__(self, name: str) -> str:
        return self._load()[name.lower()]

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or ``default``; faster than `Mapping`'s own, which catches a KeyError."""
        table = self._table
        if table is None:
            table = self._load()
        return table.get(name.lower(), default)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._load()

    def __iter__(self) -> Any:
        return iter(self._load())

    def __len__(self) -> int:
        return len(self._load())


def decoded(headers: Mapping[str, str], length: int) -> Headers:
    """The headers after the body was decoded to ``length`` bytes: without content coding."""
    own = {name: value for name, value in headers.items() if name != _CODING}
    if "content-length" in own:
        own["content-length"] = str(length)
    return Headers([(k.encode("latin-1"), v.encode("latin-1")) for k, v in own.items()])


@dataclass(slots=True, kw_only=True)
class Call:
    """One HTTP request, its body read.

    Attributes:
        method: upper case.
        path: percent-decoded path.
        headers: see `Headers`.
        body: the whole body, decoded from its content coding.
        query: the raw query string.
        management: whether it came in on a socket where the management API answers.
        metrics_only: whether only the metrics answer on that socket.
        began: ``time.perf_counter()`` at which the last byte of it was there.
        told: whether `Serve` has reported how it ended.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=Headers)
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
