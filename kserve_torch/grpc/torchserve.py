"""TorchServe's native inference service, `InferenceAPIsService` (CONTRACT P1)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from kserve_torch.codec import native
from kserve_torch.codec.envelope import Opened, open_envelope
from kserve_torch.codec.replies import check_rows
from kserve_torch.errors import InvalidInput
from kserve_torch.grpc import wire
from kserve_torch.grpc.exchange import Exchange
from kserve_torch.grpc.protos import inference_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.grpc.status import status_of
from kserve_torch.handler.tensors import save_tensor
from kserve_torch.messages import Reply, Request, RowReply, fresh_id
from kserve_torch.models import describe

if TYPE_CHECKING:
    from google.protobuf.empty_pb2 import Empty

    from kserve_torch.models.registry import Registry
    from kserve_torch.settings import Settings

SERVICE = pb.DESCRIPTOR.services_by_name["InferenceAPIsService"]

#: In `events.Responded`.
PROTOCOL = "grpc"


class TorchServeInference:
    """Servicer of `SERVICE`.

    Args:
        registry: the models.
        settings: ``service_envelope`` and the names of the sequence headers.
        most: bytes of a response.
    """

    def __init__(self, registry: Registry, settings: Settings, most: int) -> None:
        self._registry = registry
        self._most = most
        self._settings = settings

    async def Ping(self, message: Empty, call: Call) -> pb.TorchServeHealthResponse:
        """What ``/ping`` says, as JSON."""
        status = {"status": "Healthy" if describe.healthy(self._registry) else "Unhealthy"}
        health = orjson.dumps(status, option=orjson.OPT_INDENT_2).decode()
        return pb.TorchServeHealthResponse(health=health)

    async def Predictions(self, message: pb.PredictionsRequest, call: Call) -> bytes:
        """Answer one request: the input map is the handler's one row (CONTRACT R5)."""
        with Exchange(self._registry, PROTOCOL, self._most, message, call) as exchange:
            opened, request = self._read(message, call)
            exchange.request = request
            exchange.reply = await self._registry.submit(request)
            return exchange.serialize(partial(_seal, opened, request), exchange.reply)

    async def StreamPredictions(
        self, message: pb.PredictionsRequest, call: Call
    ) -> AsyncGenerator[bytes]:
        """Answer one request with every result that a streaming handler sends."""
        with Exchange(self._registry, PROTOCOL, self._most, message, call) as exchange:
            opened, request = self._read(message, call)
            exchange.request = request
            async with self._registry.stream(request) as (parts, answering):
                async for rows in parts:
                    for row in rows.values():
                        yield exchange.serialize(_part, row)
                exchange.reply = await answering
                yield exchange.serialize(partial(_seal, opened, request), exchange.reply)

    async def StreamPredictions2(
        self, messages: AsyncIterator[pb.PredictionsRequest], call: Call
    ) -> AsyncGenerator[pb.PredictionResponse | bytes]:
        """Answer the requests of sequences, in their order.

        A request that fails is answered with a ``status``; the stream goes on.
        """
        begun: set[int] = set()  # hashes: the ids may be as long as a message
        async for message in messages:
            try:
                if not message.sequence_id:
                    raise InvalidInput("Parameter sequenceId is required.")
                headers, id_ = dict(call.headers), hash(message.sequence_id)
                if id_ not in begun:
                    headers[self._settings.ts_header_key_sequence_start] = "true"
                begun.add(id_)
                named = pb.PredictionResponse(sequence_id=message.sequence_id)
                sequence = named.SerializeToString()
                in_sequence = Call(headers=headers, deadline=call.deadline)
                async with aclosing(self.StreamPredictions(message, in_sequence)) as responses:
                    async for response in responses:
                        yield response + sequence  # concatenated messages are merged by protobuf
            except Exception as error:
                status = status_of(error, f"{SERVICE.full_name}/StreamPredictions2")
                yield pb.PredictionResponse(
                    sequence_id=message.sequence_id,
                    status=pb.Status(code=status.code.value[0], message=status.text),
                )

    def _read(self, message: pb.PredictionsRequest, call: Call) -> tuple[Opened, Request]:
        """What is in a message, and the request of it.

        Raises:
            InvalidInput: no model is named, or the envelope cannot be opened.
            ModelNotFound: no such model or version.
        """
        if not message.model_name:
            raise InvalidInput("Parameter model_name is required.")
        version = self._registry.find(message.model_name, message.model_version)
        settings = self._settings

        def opened() -> Opened:
            row: dict[str, Any] = {name: bytearray(value) for name, value in message.input.items()}
            return open_envelope(settings.service_envelope, row)

        content, headers = opened(), call.headers
        if message.sequence_id:  # where stateful handlers and `Context.get_sequence_id` look (C4)
            headers = {**headers, settings.ts_header_key_sequence_id: message.sequence_id}
        return content, Request(
            id=fresh_id(),
            model=version.name,
            version=version.version,
            asked=message.model_version,
            rows=content.rows,
            again=lambda: opened().rows,
            headers=headers,
            content_types=dict.fromkeys(message.input, ""),
            element=content.element,
            deadline=call.deadline,
            snapshot=content.snapshot,
        )


def _seal(opened: Opened, request: Request, reply: Reply) -> bytes:
    """The encoded response with a reply's bytes, as its envelope wants them.

    Raises:
        PredictionError: the handler gave the row an error status.
        HandlerError: the result cannot be sent.
    """
    check_rows(reply)
    return _response(opened.seal(request, reply))


def _part(row: RowReply) -> bytes:
    """Likewise with one row's intermediate result, which has no envelope."""
    check_rows(Reply(model="", version="", rows=[row]))
    return _response(row)


def _response(row: RowReply) -> bytes:
    body, _ = native.encode(row, save_tensor)
    return b"".join(wire.field(pb.PredictionResponse.PREDICTION_FIELD_NUMBER, body))
