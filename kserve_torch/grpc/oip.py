"""The open inference protocol's service, `GRPCInferenceService` (CONTRACT 1.4, 1.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from kserve_torch.engine.aside import aside
from kserve_torch.engine.tasks import to_the_end
from kserve_torch.errors import InvalidInput
from kserve_torch.grpc import wire
from kserve_torch.grpc.exchange import Exchange
from kserve_torch.grpc.inference import Inference
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.grpc.status import status_of
from kserve_torch.models import describe
from kserve_torch.models.v2 import size_of
from kserve_torch.tokens import Access

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]

#: In `events.Responded`: KServe's name of the protocol (CONTRACT Q2).
PROTOCOL = "grpc-v2"

#: The service's package in the protocol; the other name is TorchServe's (CONTRACT O68).
PACKAGE = "inference"
NAMES = (f"{PACKAGE}.GRPCInferenceService", SERVICE.full_name)

#: The access that a call's token must grant; probes and metadata need none, as over REST.
ACCESS = {
    "ModelInfer": Access.INFERENCE,
    "ModelStreamInfer": Access.INFERENCE,
    "RepositoryModelLoad": Access.MANAGEMENT,
    "RepositoryModelUnload": Access.MANAGEMENT,
}


class OpenInference:
    """Servicer of `SERVICE`.

    Args:
        registry: the models.
        most: bytes of a response.
    """

    def __init__(self, registry: Registry, most: int) -> None:
        self._registry = registry
        self._most = most

    # --- health and metadata ---

    async def ServerLive(self, message: pb.ServerLiveRequest, call: Call) -> pb.ServerLiveResponse:
        """Whether the process works; if not, only a restart helps."""
        return pb.ServerLiveResponse(live=self._registry.live())

    async def ServerReady(
        self, message: pb.ServerReadyRequest, call: Call
    ) -> pb.ServerReadyResponse:
        """Whether every model would serve a request now (CONTRACT T-05)."""
        return pb.ServerReadyResponse(ready=self._registry.ready())

    async def ModelReady(self, message: pb.ModelReadyRequest, call: Call) -> pb.ModelReadyResponse:
        """Whether a model or one version of it would serve a request now."""
        ready = self._registry.is_ready(message.name, message.version)
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(
        self, message: pb.ServerMetadataRequest, call: Call
    ) -> pb.ServerMetadataResponse:
        """Name, version and extensions of the server."""
        return pb.ServerMetadataResponse(**describe.server_metadata())

    async def ModelMetadata(
        self, message: pb.ModelMetadataRequest, call: Call
    ) -> pb.ModelMetadataResponse:
        """Versions, platform, inputs and outputs of a model."""
        metadata = describe.model_metadata(self._registry, message.name, message.version)
        return pb.ModelMetadataResponse(**metadata)

    # --- inference ---

    async def ModelInfer(self, message: pb.ModelInferRequest, call: Call) -> bytes:
        """Answer one request; ``verb: "explain"`` among its parameters asks for explanations."""
        with self._exchange(message, call) as exchange:
            infer = await Inference.of(self._registry, message, call)
            exchange.request = infer.request
            exchange.reply = await self._registry.submit(infer.request)
            size = size_of(exchange.reply)
            return await aside(size, exchange.serialize, infer.response, exchange.reply)

    async def ModelStreamInfer(
        self, messages: AsyncIterator[pb.ModelInferRequest], call: Call
    ) -> AsyncIterator[pb.ModelStreamInferResponse | bytes]:
        """Answer requests one after the other, each with as many responses as its handler sends.

        A request that fails is answered with an ``error_message``; the stream goes on.
        """
        async for message in messages:
            try:
                async with aclosing(self._responses(message, call)) as responses:
                    async for response in responses:
                        yield response
            except Exception as error:
                status = status_of(error, f"{NAMES[0]}/ModelStreamInfer")
                yield pb.ModelStreamInferResponse(
                    error_message=status.text,
                    infer_response=pb.ModelInferResponse(
                        model_name=message.model_name, id=message.id
                    ),
                )

    async def _responses(
        self, message: pb.ModelInferRequest, call: Call
    ) -> AsyncGenerator[pb.ModelStreamInferResponse | bytes]:
        with self._exchange(message, call) as exchange:
            infer = await Inference.of(self._registry, message, call)
            request = exchange.request = infer.request
            async with self._registry.stream(request) as (parts, answering):
                async for rows in parts:
                    yield exchange.serialize(lambda part: _streamed(infer.part(part)), rows)
                exchange.reply = await answering
                yield exchange.serialize(
                    lambda reply: _streamed(infer.response(reply)), exchange.reply
                )
            if infer.wants_ending:
                yield _streamed(infer.ending())

    def _exchange(self, message: pb.ModelInferRequest, call: Call) -> Exchange:
        id_ = message.id or call.headers.get("x-request-id", "")
        return Exchange(self._registry, PROTOCOL, self._most, message, call, id_)

    # --- the model repository ---

    async def RepositoryIndex(
        self, message: pb.RepositoryIndexRequest, call: Call
    ) -> pb.RepositoryIndexResponse:
        """Every version of every model with its state and the reason (CONTRACT O80)."""
        index = describe.repository_index(self._registry, only_ready=message.ready)
        return pb.RepositoryIndexResponse(
            models=[pb.RepositoryIndexResponse.ModelIndex(**entry) for entry in index]
        )

    async def RepositoryModelLoad(
        self, message: pb.RepositoryModelLoadRequest, call: Call
    ) -> pb.RepositoryModelLoadResponse:
        """Load a model, or load it again (CONTRACT O84)."""
        name = _model_name(message)
        await to_the_end(self._registry.load(name))
        return pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(
        self, message: pb.RepositoryModelUnloadRequest, call: Call
    ) -> pb.RepositoryModelUnloadResponse:
        """Unload a model with all of its versions."""
        name = _model_name(message)
        await asyncio.shield(self._registry.unload(name))
        return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)


def _streamed(response: bytes) -> bytes:
    """An encoded response as one of a stream."""
    number = pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER
    return b"".join(wire.field(number, response))


def _model_name(
    message: pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest,
) -> str:
    """The model's name, in Triton's field or in KServe's."""
    name = message.triton_model_name or message.model_name
    if not name:
        raise InvalidInput("model_name: missing")
    return name
