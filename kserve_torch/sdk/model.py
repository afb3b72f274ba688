"""`TorchModel`: the handler runtime as a `kserve.Model`.

In our own server the HTTP and gRPC edges talk to the engine directly. Registered in a plain
`kserve.ModelServer`, the same model answers the same requests through ``predict`` and ``explain``:
KServe's v1 dictionaries and v2 `InferRequest` objects become Requests of the same engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kserve
from kserve import InferRequest, InferResponse
from kserve.model import InferenceVerb

from kserve_torch.codec import cloudevents, v1
from kserve_torch.codec.replies import check_rows, row_headers
from kserve_torch.codec.v2 import V2Request, verb_of
from kserve_torch.errors import ModelNotFound, NotReady, ServingError
from kserve_torch.messages import Request, Verb, fresh_id
from kserve_torch.models.v2 import outputs_of, request_of
from kserve_torch.sdk import infer_types
from kserve_torch.sdk.errors import translated
from kserve_torch.sdk.loading import in_thread, load_alone

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

#: The headers that the handler sets in the running call; the SDK's `explain` cannot return any.
_own_headers: ContextVar[dict[str, str]] = ContextVar("own_headers")


class TorchModel(kserve.Model):  # type: ignore[misc]  # kserve is untyped
    """A TorchServe archive as a KServe model.

    Args:
        name: the name on the endpoint path.
        model_dir: an archive, or a folder in one of the server's layouts that holds a single
            archive; needed unless ``registry`` is given.
        registry: the models of a running server, which then owns the model.
    """

    def __init__(
        self, name: str, model_dir: str | Path | None = None, *, registry: Registry | None = None
    ) -> None:
        if (model_dir is None) == (registry is None):
            raise ValueError("TorchModel needs either a model_dir or a registry")
        self._own = registry is None
        self._model_dir = model_dir
        self._registry = registry
        super().__init__(name)

    # --- life cycle, as KServe's server drives it ---

    @property
    def ready(self) -> bool:
        """Whether a request would be served now (CONTRACT T-46)."""
        try:
            return self._registry is not None and self._registry.is_ready(self.name)
        except ModelNotFound:
            return False

    @ready.setter
    def ready(self, value: bool) -> None:
        """Ignored: KServe's base classes set it, but here it follows from the workers (K22)."""

    def load(self) -> bool:
        """Load the archive once; KServe may call this again from its event loop (CONTRACT K24).

        Raises:
            ServingError: the archive cannot be served; the message says why.
        """
        if self._registry is None:
            self._registry = load_alone(self.name, Path(str(self._model_dir)))
        return self.ready

    def stop(self) -> None:
        """Stop the workers, unless a server of ours owns the model."""
        if self._own and self._registry is not None:
            registry, self._registry = self._registry, None
            in_thread(registry.close())

    # The SDK sends the models to each process of its ``workers``, where they must be loaded again.

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_registry": self._own and self._registry is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        loaded = state.pop("_registry")
        self.__dict__.update(state, _registry=None)
        if loaded:
            self.load()

    # --- requests ---

    async def __call__(
        self,
        body: dict[str, Any] | bytes | InferRequest,
        headers: Mapping[str, str] | None = None,
        verb: InferenceVerb = InferenceVerb.PREDICT,
    ) -> tuple[dict[str, Any] | InferResponse, dict[str, str]]:
        """Answer one request of KServe's data plane: ``preprocess``, the model, ``postprocess``.

        Args:
            body: a v1 body, parsed or not, or a v2 request.
            headers: of the request; for explanations, a dictionary is changed, see
                `_keep_what_goes_back`.
            verb: predict or explain.

        Returns:
            The v1 or v2 response, and the headers that the handler set.
        """
        given = headers
        if verb is InferenceVerb.EXPLAIN and isinstance(headers, dict):
            given = dict(headers)
            _keep_what_goes_back(headers)
        own: dict[str, str] = {}
        outer = _own_headers.set(own)
        try:
            response, more = await super().__call__(body, given, verb)
        finally:
            _own_headers.reset(outer)
        return response, {**own, **more}

    def validate(self, payload: Any) -> Any:
        """Leave it to the decoder, whose errors say more."""
        return payload

    async def predict(
        self,
        payload: dict[str, Any] | bytes | InferRequest,
        headers: Mapping[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> dict[str, Any] | InferResponse:
        """The predictions of a v1 body or a v2 request, without ``preprocess`` and so on."""
        return await self._served(payload, headers, Verb.PREDICT, response_headers)

    async def explain(
        self,
        payload: dict[str, Any] | bytes | InferRequest,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any] | InferResponse:
        """The explanations of a v1 body or a v2 request."""
        return await self._served(payload, headers, Verb.EXPLAIN, None)

    async def _served(
        self,
        body: dict[str, Any] | bytes | InferRequest,
        headers: Mapping[str, str] | None,
        verb: Verb,
        response_headers: dict[str, str] | None,
    ) -> dict[str, Any] | InferResponse:
        try:
            response, own = await self._answer(body, headers or {}, verb)
        except ServingError as error:
            from_grpc = isinstance(body, InferRequest) and body.from_grpc
            raise translated(error, self.name, from_grpc) from error
        kept = _own_headers.get(None) if response_headers is None else response_headers
        if kept is not None:
            kept.update(own)
        return response

    def get_input_types(self) -> list[dict[str, Any]]:
        """The input tensors, for the model's metadata; [] if they are not known."""
        return self._types("inputs")

    def get_output_types(self) -> list[dict[str, Any]]:
        """The output tensors, likewise."""
        return self._types("outputs")

    def _types(self, side: str) -> list[dict[str, Any]]:
        if self._registry is None:
            return []
        return [dict(tensor) for tensor in self._registry.find(self.name).signature(side)]

    async def _answer(
        self, body: dict[str, Any] | bytes | InferRequest, headers: Mapping[str, str], verb: Verb
    ) -> tuple[dict[str, Any] | InferResponse, dict[str, str]]:
        if isinstance(body, InferRequest):
            decoded = infer_types.decode(body)
            verb = verb_of(decoded) if body.from_grpc else verb
            return await self._infer(decoded, headers, verb, body.model_version, body.from_grpc)
        if isinstance(body, bytes):
            read = v1.decode(body, headers.get("content-type", ""))
        else:
            read = v1.from_document(body)
        if isinstance(read, V2Request):
            # KServe's v1 routes cannot send binary data.
            outputs = read.outputs and [replace(one, binary=False) for one in read.outputs]
            plain = replace(read, outputs=outputs, binary_output=False)
            response, own = await self._infer(plain, headers, verb, None, False)
            return response.to_rest()[0], own
        request = Request(
            id=headers.get("x-request-id") or fresh_id(),
            model=self.name,
            headers=headers,
            verb=verb,
            rows=deepcopy(read.instances),
            again=lambda: deepcopy(read.instances),
            parameters=read.parameters,
            content_types=read.content_types,
            element=v1.ELEMENT,
        )
        reply = await self._loaded().submit(request)
        check_rows(reply)
        # Not orjson: it rounds integers beyond 64 bits and refuses halves of surrogate pairs.
        return json.loads(v1.encode(reply.results, verb)), dict(row_headers(reply))

    async def _infer(
        self,
        decoded: V2Request,
        headers: Mapping[str, str],
        verb: Verb,
        version: str | None,
        from_grpc: bool,
    ) -> tuple[InferResponse, dict[str, str]]:
        found = self._loaded().find(self.name, version or None)
        request = request_of(found, decoded, headers, verb, from_grpc=from_grpc)
        reply = await self._loaded().submit(request)
        check_rows(reply)
        own = dict(row_headers(reply))
        outputs = outputs_of(found, decoded, verb, reply)
        response = infer_types.encode(
            self.name, reply.version, request.id, outputs, decoded, own, from_grpc=from_grpc
        )
        return response, own

    def _loaded(self) -> Registry:
        if self._registry is None:
            raise NotReady(f"Model with name {self.name} is not ready.")
        return self._registry


def _keep_what_goes_back(headers: dict[str, str]) -> None:
    """Remove the headers that must not be sent back, such as authorization.

    The SDK's ``explain`` uses the dictionary of the request's headers as the response's, and finds
    in it whether to answer with a CloudEvent.
    """
    event = {
        name: value
        for name, value in headers.items()
        if name.startswith("ce-") or value == cloudevents.MEDIA_TYPE
    }
    headers.clear()
    headers.update(event)
