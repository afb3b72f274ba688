"""Binds services to servicers: what every RPC goes through on its way in and out.

::

    bytes -> message -> authorise -> servicer method -> message -> bytes
                                     error -> status

A servicer is a plain object with one method per RPC, named as in the protocol: a coroutine
``(message, call) -> message`` (or its bytes), or an async generator ``(message, call) -> messages``
where the response is a stream. A streamed request is an async iterator in place of the message.
Methods that a servicer lacks answer UNIMPLEMENTED. Servicers raise; they never see a gRPC context.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from kserve_torch.errors import InvalidInput, NotReady
from kserve_torch.grpc.metadata import headers_of, metadata_of
from kserve_torch.grpc.status import Status, status_of
from kserve_torch.messages import NOTHING

#: Takes the ``authorization`` header; raises a `ServingError` if it does not permit the call.
Authorise = Callable[[str | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a servicer sees of an RPC beside its message.

    Attributes:
        headers: see `headers_of`.
        deadline: ``time.monotonic()`` after which the client no longer waits, or None.
        trailing: metadata to send after the last message; a servicer adds to it.
    """

    headers: Mapping[str, str] = NOTHING
    deadline: float | None = None
    trailing: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, context: grpc.aio.ServicerContext) -> Call:
        """The call that ``context`` belongs to."""
        remaining = context.time_remaining()
        return cls(
            headers=headers_of(context),
            deadline=None if remaining is None else time.monotonic() + remaining,
        )


class Streams:
    """The streamed requests of a server; most wait for their client, so the server ends them.

    Attributes:
        closed: no stream has a next request any more.
    """

    def __init__(self) -> None:
        self.closed = False
        self._waiting: set[asyncio.Timeout] = set()

    def close(self) -> None:
        """End each stream, after the message that is being answered, if any."""
        self.closed = True
        for waiting in self._waiting:
            waiting.reschedule(0.0)

    async def parse_each(
        self, kind: type[Message], stream: AsyncIterator[bytes]
    ) -> AsyncIterator[Message]:
        """The messages of a stream.

        Raises:
            InvalidInput: one cannot be parsed.
            NotReady: the server is stopping.
        """
        received = aiter(stream)
        while (data := await self._next(received)) is not None:
            yield _parse(kind, data)

    async def _next(self, received: AsyncIterator[bytes]) -> bytes | None:
        """The client's next message, None at the end of the stream."""
        if not self.closed:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as waiting:
                    self._waiting.add(waiting)
                    try:
                        return await anext(received, None)
                    finally:
                        self._waiting.discard(waiting)
        raise NotReady("the server is being stopped")


def bind(
    service: ServiceDescriptor,
    servicer: object,
    streams: Streams,
    name: str | None = None,
    authorise: Mapping[str, Authorise] = NOTHING,
) -> grpc.GenericRpcHandler:
    """The handler that serves ``service`` with the methods of ``servicer``.

    Args:
        service: its descriptor, with the message types and which sides stream.
        servicer: see the module's docstring.
        streams: of the server.
        name: the full name to serve it under; the default is the service's own.
        authorise: by method name, what is called before each RPC; other methods are open to all.
    """
    name = name or service.full_name
    handlers = {
        method.name: _handler(
            method, getattr(servicer, method.name), streams, name, authorise.get(method.name)
        )
        for method in service.methods
        if hasattr(servicer, method.name)
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def _handler(
    method: MethodDescriptor,
    function: Callable[..., Any],
    streams: Streams,
    service: str,
    authorise: Authorise | None,
) -> grpc.RpcMethodHandler:
    """One method's handler; the descriptor has the classes of its messages."""
    path = f"{service}/{method.name}"
    kind = GetMessageClass(method.input_type)

    async def unary(data: Any, context: grpc.aio.ServicerContext) -> Any:
        async with _guarded(context, path) as call:
            admit(call)
            return await function(received(data), call)

    async def stream(data: Any, context: grpc.aio.ServicerContext) -> None:
        async with _guarded(context, path) as call:
            admit(call)
            async with aclosing(function(received(data), call)) as responses:
                async for response in responses:
                    with _while_client_is_there():
                        await context.write(response)

    def admit(call: Call) -> None:
        if authorise is not None:
            authorise(call.headers.get("authorization"))

    def received(data: Any) -> Any:
        return streams.parse_each(kind, data) if method.client_streaming else _parse(kind, data)

    return _FACTORIES[method.client_streaming, method.server_streaming](
        stream if method.server_streaming else unary,
        response_serializer=_bytes,
    )


def _bytes(answer: Message | bytes) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


# Requests are parsed here because gRPC answers UNKNOWN to malformed ones.


def _parse(kind: type[Message], data: bytes) -> Message:
    """The message in ``data``.

    Raises:
        InvalidInput: it cannot be parsed.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidInput(f"the request is not a valid {kind.DESCRIPTOR.name}") from None


#: By whether the request and whether the response is a stream.
_FACTORIES = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


@asynccontextmanager
async def _guarded(context: grpc.aio.ServicerContext, path: str) -> AsyncIterator[Call]:
    """Wraps an RPC from its first message to its last; an error ends it with a status."""
    call = Call.of(context)
    try:
        yield call
        context.set_trailing_metadata(metadata_of(call.trailing))
    except Exception as error:
        status = status_of(error, path)
        with _while_client_is_there():
            await _abort(context, status)


async def _abort(context: grpc.aio.ServicerContext, status: Status) -> None:
    """End an RPC with an error.

    gRPC keeps the exception by which it does so with the call, and raises it again once the method
    has returned. Its frames hold the call and the request: in such a circle they would stay in
    memory until Python looks for garbage.
    """
    try:
        await context.abort(status.code, status.text, status.metadata)
    except grpc.aio.AbortError as aborted:
        aborted.__traceback__ = None


@contextmanager
def _while_client_is_there() -> Iterator[None]:
    """End quietly if the client leaves, or its deadline passes, while a message is sent to it.

    gRPC itself would log a traceback.
    """
    try:
        yield
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
