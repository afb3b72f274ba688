"""The short way for a request that arrived as a whole: one call of the application, one write.

Nearly all inference requests are complete when their turn comes. ASGI's messages, which are for
bodies and answers in pieces, would take a third of the event loop's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import starmap

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

from kserve_torch.http.app import App
from kserve_torch.http.call import Answer
from kserve_torch.http.http10 import STAYING
from kserve_torch.http.sending import BODILESS, respond, unsized_headers

#: Bytes up to which a body is copied behind its head: that is faster than writing two pieces.
COPIED = 64 * 1024


def is_whole(cycle: RequestResponseCycle, app: App) -> bool:
    """Whether this is a POST whose body is complete and within the limit."""
    return (
        not cycle.more_body and cycle.scope["method"] == "POST" and len(cycle.body) <= app.max_body
    )


async def answer_whole(cycle: RequestResponseCycle, app: App) -> None:
    """Answer the request and send the answer.

    Args:
        cycle: uvicorn's state of the request; afterwards as if its ``run_asgi`` had run.
        app: the application.
    """
    body = bytes(cycle.body)
    cycle.body = bytearray()
    cycle.flow.resume_reading()
    try:
        answer = await app.answer(cycle.scope, body)
        close = app.draining()
        if isinstance(answer.body, bytes) and answer.status not in BODILESS:
            if cycle.flow.write_paused:
                await cycle.flow.drain()
            _write(cycle, answer, answer.body, close)
        else:
            await respond(cycle.send, answer, close)  # type: ignore[arg-type]
    finally:
        cycle.on_response = _nothing  # breaks a reference cycle


def _write(cycle: RequestResponseCycle, answer: Answer, body: bytes, close: bool) -> None:
    if cycle.disconnected:
        return
    cycle.keep_alive = cycle.keep_alive and not (close or answer.close)
    head = _head(cycle, answer, len(body))
    cycle.response_started = cycle.response_complete = True
    if len(body) > COPIED:
        cycle.transport.writelines((head, body))
    else:
        cycle.transport.write(head + body)
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


def _head(cycle: RequestResponseCycle, answer: Answer, length: int) -> bytes:
    stays = cycle.keep_alive and cycle.scope["http_version"] < "1.1"
    about = _about(answer.content_type, tuple(answer.headers), not cycle.keep_alive, stays)
    dated = _lines(cycle.default_headers)
    return b"%b%b%bcontent-length: %d\r\n\r\n" % (STATUS_LINE[answer.status], dated, about, length)


@lru_cache(maxsize=64)  # most answers have the same
def _about(
    content_type: str | None, headers: tuple[tuple[str, str], ...], close: bool, stays: bool
) -> bytes:
    raw = unsized_headers(content_type, headers, close)
    return _lines([*raw, STAYING] if stays else raw)


def _lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(starmap(_line, headers))


@lru_cache(maxsize=64)
def _line(name: bytes, value: bytes) -> bytes:
    if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        raise ValueError(f"header {name!r} cannot be sent")
    return b"%b: %b\r\n" % (name, value)


def _nothing() -> None:
    """Stands in for uvicorn's callback after an answer."""
