"""``/metrics`` for Prometheus (CONTRACT N20, N21, X1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import parse_qsl

from kserve_torch.errors import NOT_ALLOWED
from kserve_torch.http.call import Answer, Call
from kserve_torch.http.routes import Routes, question

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsText:
    """Answers ``GET /metrics[/][?name[]=a&name[]=b]``.

    Args:
        pieces: the text of the metrics with these names, None for all; a piece takes milliseconds.
        enabled: whether anything is answered.

    Attributes:
        route: answers calls of its path.
    """

    def __init__(
        self, pieces: Callable[[Sequence[str] | None], Iterable[bytes]], *, enabled: bool
    ) -> None:
        self._pieces = pieces
        routes = {"/metrics": question(self._text)} if enabled else {}
        self.route = Routes(routes, refused=NOT_ALLOWED)

    async def _text(self, call: Call) -> Answer:
        names = [value for key, value in parse_qsl(call.query) if key == "name[]"]
        pieces: list[bytes] = []
        for piece in self._pieces(names or None):
            pieces.append(piece)
            await asyncio.sleep(0)  # lets requests pass: all of them together may take 0.1 s
        return Answer(body=b"".join(pieces), content_type=CONTENT_TYPE)
