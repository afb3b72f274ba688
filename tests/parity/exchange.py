"""One request to both servers, and whether their answers are the same."""

from __future__ import annotations

import http.client
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: What differs from run to run on one and the same server.
VOLATILE = frozenset({"startTime", "memoryUsage", "pid", "id", "gpuUsage"})
TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Step:
    """A request.

    Attributes:
        port: ``inference`` or ``management``.
        note: what is special about it, if the path does not say.
    """

    port: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        """What the step is called in `differences` and by pytest."""
        note = f" ({self.note})" if self.note else ""
        return f"{self.port}: {self.method} {self.path}{note}"

    def send(self, ports: Mapping[str, int]) -> Answer:
        """Send it as it is written: no path is put right on the way."""
        connection = http.client.HTTPConnection("127.0.0.1", ports[self.port], timeout=120)
        try:
            connection.request(self.method, self.path, self.body or None, dict(self.headers))
            response = connection.getresponse()
            return Answer(status=response.status, body=parsed(response.read()))
        finally:
            connection.close()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Status and body; the body parsed if it is JSON."""

    status: int
    body: Any


def parsed(body: bytes) -> Any:
    """The value if it is JSON, else the text."""
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def differences(theirs: Answer, ours: Answer) -> dict[str, str]:
    """Where two answers differ, as ``status`` or a path into the body, and how."""
    found = dict(_unlike("body", theirs.body, ours.body))
    if theirs.status != ours.status:
        found["status"] = f"{theirs.status} and {ours.status}"
    return found


def _unlike(where: str, theirs: Any, ours: Any) -> Iterator[tuple[str, str]]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted((theirs.keys() | ours.keys()) - VOLATILE):
            if key in theirs and key in ours:
                yield from _unlike(f"{where}.{key}", theirs[key], ours[key])
            else:
                yield f"{where}.{key}", f"only {'theirs' if key in theirs else 'ours'}"
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, both in enumerate(zip(theirs, ours, strict=True)):
            yield from _unlike(f"{where}[{index}]", *both)
    elif not _alike(theirs, ours):
        yield where, f"{theirs!r:.100} and {ours!r:.100}"


def _alike(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, str) and isinstance(ours, str):
        inner = parsed(theirs.encode()), parsed(ours.encode())
        if isinstance(inner[0], (dict, list)):  # a JSON text inside, as v2 puts objects
            return not any(_unlike("", *inner))
        return theirs == ours
    numbers = all(isinstance(one, (int, float)) for one in (theirs, ours))
    if numbers and not any(isinstance(one, bool) for one in (theirs, ours)):
        return math.isclose(theirs, ours, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(theirs == ours)
