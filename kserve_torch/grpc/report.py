"""One inference request seen from the edge: how it ended and how long it took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kserve_torch.errors import ServingError
from kserve_torch.events import Event, Responded
from kserve_torch.messages import Reply, Request, Timing


@dataclass(slots=True)
class Exchange:
    """A request and its reply, as far as they have come."""

    request: Request | None = None
    reply: Reply | None = None


@contextmanager
def reported(emit: Callable[[Event], None], protocol: str, model: str) -> Iterator[Exchange]:
    """Emits one `Responded` when the block ends, with the HTTP status that means the same.

    Args:
        emit: takes the event.
        protocol: the event's protocol.
        model: the name that the client asked for.
    """
    exchange, began, http, failed = Exchange(), time.perf_counter(), 200, ""
    try:
        yield exchange
    except (asyncio.CancelledError, GeneratorExit):
        http = 499
        raise
    except Exception as error:
        http = error.http if isinstance(error, ServingError) else 500
        failed = type(error).__name__
        raise
    finally:
        emit(_responded(exchange, protocol, model, http, time.perf_counter() - began, failed))


def _responded(
    exchange: Exchange, protocol: str, model: str, http: int, seconds: float, error: str
) -> Responded:
    request, reply = exchange.request, exchange.reply
    version = reply.version if reply else request.version if request else None
    return Responded(
        protocol=protocol,
        model=model,
        version=version or "",
        status=http,
        seconds=seconds,
        request_id=request.id if request else "",
        rows=len(request.rows) if request else 0,
        timing=reply.timing if reply else Timing(),
        error=error,
    )
