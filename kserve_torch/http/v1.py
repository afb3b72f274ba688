"""The data plane of KServe's v1 protocol: ``:predict``, ``:explain`` (CONTRACT K4, K5, K10-K20)."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from kserve_torch.codec import cloudevents, v1
from kserve_torch.codec.cloudevents import Event
from kserve_torch.codec.document import JSON
from kserve_torch.codec.replies import check_rows, row_headers
from kserve_torch.codec.snapshot import written
from kserve_torch.codec.v1 import V1Request
from kserve_torch.codec.v2 import V2Request
from kserve_torch.engine.aside import aside
from kserve_torch.http.call import Answer, Call
from kserve_torch.http.errors import kserve_answer
from kserve_torch.http.routes import Routes
from kserve_torch.http.serve import Serve, deadline
from kserve_torch.http.v2 import HEADER_LENGTH, V2, read_v2
from kserve_torch.messages import Reply, Request, Verb, fresh_id

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

_PATH = r"/v1/models/(?P<model>[^/:]+):(?P<verb>predict|explain)"


class V1:
    """``POST /v1/models/{m}:predict`` and ``:explain``.

    A body with v2 ``inputs`` in place of ``instances`` is read and answered as v2: examples that
    users start from do that.

    Args:
        registry: the models.
        v2: answers v2 bodies.

    Attributes:
        route: answers calls of its paths.
    """

    def __init__(self, registry: Registry, v2: V2) -> None:
        self._registry = registry
        self._serve = Serve(registry, "v1", kserve_answer)
        self._v2 = v2
        self.route = Routes({_PATH: {"POST": self._infer}})

    async def _infer(self, call: Call, model: str, verb: str) -> Answer:
        try:
            decoded = await self._decoded(call, model)
            event = decoded.event or cloudevents.from_headers(call.headers)
            if isinstance(decoded, V2Request):
                return await self._as_v2(call, model, Verb(verb), decoded, event)
            request = _request(call, model, Verb(verb), decoded)
        except Exception as error:
            return self._serve.refuse(call, model, error)
        return await self._serve(call, request, lambda reply: _answer(request, reply, event))

    async def _decoded(self, call: Call, model: str) -> V1Request | V2Request:
        found = self._registry.find(model)
        # v2's own header: v2 clients send binary data with a type that means bytes in v1.
        length = call.headers.get(HEADER_LENGTH)
        if length in (None, str(len(call.body))):
            return await aside(len(call.body), _read, call)
        return await read_v2(call, found)

    async def _as_v2(
        self, call: Call, model: str, verb: Verb, decoded: V2Request, event: Event | None
    ) -> Answer:
        answer = await self._v2.answer(call, model, None, verb, decoded)
        return answer if event is None or answer.status != 200 else _event(answer, event, model)


def _read(call: Call) -> V1Request | V2Request:
    return v1.decode(call.body, call.headers.get("content-type", ""))


def _request(call: Call, model: str, verb: Verb, decoded: V1Request) -> Request:
    return Request(
        id=call.headers.get("x-request-id") or fresh_id(),
        model=model,
        verb=verb,
        rows=decoded.instances,
        again=lambda: cast("V1Request", _read(call)).instances,
        headers=call.headers,
        content_types=decoded.content_types,
        parameters=decoded.parameters,
        element=v1.ELEMENT,
        deadline=deadline(call),
        snapshot=written,
    )


def _answer(request: Request, reply: Reply, event: Event | None) -> Answer:
    check_rows(reply)
    body = v1.encode(reply.results, request.verb)
    answer = Answer(body=body, content_type=JSON, headers=row_headers(reply))
    return answer if event is None else _event(answer, event, request.model)


def _event(answer: Answer, event: Event, model: str) -> Answer:
    """The answer as the event that answers ``event``."""
    now = datetime.now(UTC).isoformat()
    attributes = cloudevents.response_attributes(event, model, os.environ, id=fresh_id(), time=now)
    # Binary data does not fit into a structured event, which is JSON: its attributes go as headers.
    if event.structured and answer.content_type == JSON and isinstance(answer.body, bytes):
        body = cloudevents.to_structured(attributes, answer.body)
        return replace(answer, body=body, content_type=cloudevents.MEDIA_TYPE)
    return replace(answer, headers=[*answer.headers, *cloudevents.to_headers(attributes)])
