"""Reports how an inference request ended and how long it took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from kserve_torch.engine.intake import timing_of
from kserve_torch.errors import ServingError
from kserve_torch.events import Responded
from kserve_torch.grpc.rpc import Call, serialized
from kserve_torch.http.serve import CLIENT_LEFT, log_unsendable
from kserve_torch.messages import NO_TIME, NOTHING, Reply, Request

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

T = TypeVar("T")


@dataclass(slots=True)
class Exchange:
    """A request and its reply, if there is one.

    Attributes:
        protocol: for the event.
        most: bytes of a response.
        request: without rows until it is decoded.
    """

    protocol: str
    most: int
    request: Request
    reply: Reply | None = None

    def serialize(self, make: Callable[[T], Message], answered: T) -> bytes:
        """The response that ``make`` makes of the handler's answer, as bytes.

        Raises:
            ServingError: it cannot be sent; the log says why.
        """
        try:
            return serialized(make(answered), self.most)
        except ServingError as error:
            log_unsendable(self.request, error)
            raise


@contextmanager
def reported(
    registry: Registry, protocol: str, most: int, message: Any, call: Call, id: str = ""
) -> Iterator[Exchange]:
    """Emits one `Responded` when the block ends, with the corresponding HTTP status.

    The block adds the decoded request and its reply to what it gets.

    Args:
        registry: the models, and where the event goes.
        protocol: as of `Exchange`.
        most: likewise.
        message: the request; it names a model and a version.
        call: its RPC.
        id: the client's id.
    """
    model, version = message.model_name, message.model_version
    asked = Request(id=id, model=model, version=version, rows=(), headers=call.headers)
    exchange = Exchange(protocol, most, asked)
    began, http, failed, timing = time.perf_counter(), 200, "", NO_TIME
    try:
        yield exchange
    except (asyncio.CancelledError, GeneratorExit) as gone:
        http, timing = CLIENT_LEFT, timing_of(gone)
        raise
    except Exception as error:
        http = error.http if isinstance(error, ServingError) else 500
        failed, timing = type(error).__name__, timing_of(error)
        raise
    finally:
        request, reply = exchange.request, exchange.reply
        version = reply.version if reply else registry.version_of(request.model, request.version)
        registry.emit(
            Responded(
                protocol=exchange.protocol,
                model=request.model,
                version=version,
                status=http,
                seconds=time.perf_counter() - began,
                request_id=request.id,
                rows=len(request.rows),
                timing=reply.timing if reply else timing,
                error=failed,
                headers=request.headers if registry.observers.want_headers else NOTHING,
            )
        )
