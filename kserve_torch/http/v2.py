"""The data plane of the open inference protocol: ``infer`` and ``explain`` (CONTRACT 1.2, 1.3)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson

from kserve_torch.codec import v2, v2_reply
from kserve_torch.codec.document import JSON
from kserve_torch.codec.mapping import MAPPINGS
from kserve_torch.codec.v2 import V2Request
from kserve_torch.http.errors import kserve_answer, method_not_allowed
from kserve_torch.http.exchange import Answer, Call
from kserve_torch.http.serve import Serve, check_rows, deadline, refused_id, row_headers
from kserve_torch.messages import Reply, Request, Tensor, Verb, fresh_id

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion

HEADER_LENGTH = "inference-header-content-length"
#: Refused bodies of up to so many bytes are parsed once more, for the id in their log line.
_READ_AGAIN = 64 * 1024
_PATH = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/(?P<verb>infer|explain)/?"
)
_VERBS = {"infer": Verb.PREDICT, "explain": Verb.EXPLAIN}


class V2:
    """``POST /v2/models/{m}[/versions/{v}]/infer`` and ``.../explain``.

    Handlers read the request's ``parameters`` like headers, by ``context.get_request_header``, so
    that one handler serves all protocols. What they set with ``context.set_response_header`` goes
    out as a header and in the response's ``parameters``.

    Args:
        registry: the models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._serve = Serve(registry, "v2", kserve_answer, _refused_id)

    async def route(self, call: Call) -> Answer | None:
        """The answer, or None if the path is not one of these."""
        match = _PATH.fullmatch(call.path)
        if match is None:
            return None
        if call.method != "POST":
            return method_not_allowed(call.method, call.path, ["POST"])
        model, version, verb = match.groups()
        return await self.answer(call, model, version, _VERBS[verb])

    async def answer(
        self,
        call: Call,
        model: str,
        version: str | None,
        verb: Verb,
        decoded: V2Request | None = None,
    ) -> Answer:
        """Serve a v2 request; ``decoded`` if its body has been read already."""
        inference = Inference(call, verb, version)

        def read() -> Request:
            found = self._registry.find(model, version)
            if decoded is not None:
                return inference.request(found, decoded)
            length = call.headers.get(HEADER_LENGTH)
            return inference.request(found, v2.decode(call.body, length, found.signature("inputs")))

        return await self._serve(call, model, read, inference.answer, version)


def _refused_id(call: Call) -> str:
    """The id in the body of a refused request, else the header's."""
    length = call.headers.get(HEADER_LENGTH, "")
    try:
        head = call.body[: int(length)] if length.isdecimal() else call.body
        document = orjson.loads(head) if len(head) <= _READ_AGAIN else None
    except ValueError:
        document = None
    id_ = document.get("id") if isinstance(document, dict) else None
    return id_ if id_ and isinstance(id_, str) else refused_id(call)


class Inference:
    """One v2 request and its answer, which needs to know what was asked for.

    Args:
        call: the HTTP request.
        verb: predict or explain.
        version: the version asked for, or None.
    """

    def __init__(self, call: Call, verb: Verb, version: str | None) -> None:
        self._call = call
        self._verb = verb
        self._version = version

    def request(self, found: ModelVersion, decoded: V2Request) -> Request:
        """The rows of the inputs: one per tensor, or per element of dimension 0 (CONTRACT D2)."""
        self._decoded = decoded
        self._mapping = mapping = MAPPINGS[found.limits.v2_rows]
        self._flatten = found.limits.v2_flatten
        return Request(
            id=decoded.id or self._call.headers.get("x-request-id") or fresh_id(),
            model=found.name,
            version=found.version,
            asked=self._version or "",
            verb=self._verb,
            rows=mapping.rows(decoded.inputs),
            headers=self._call.headers,
            parameters=decoded.parameters,
            element=mapping.element,
            deadline=deadline(self._call),
        )

    def outputs(self, reply: Reply) -> list[Tensor]:
        """The output tensors of a reply."""
        names = [tensor.name for tensor in self._decoded.inputs]
        return self._mapping.outputs(reply.results, names, self._flatten)

    def answer(self, request: Request, reply: Reply) -> Answer:
        """The response, in JSON or with binary data behind it."""
        check_rows(reply)
        headers = row_headers(reply)
        sent = self._decoded.id  # echoed even if empty, which counts as none here (CONTRACT O21)
        body, json_length = v2_reply.encode(
            reply.model,
            reply.version,
            request.id if sent is None else sent,
            self.outputs(reply),
            self._decoded,
            dict(headers),
        )
        if json_length is None:
            return Answer(body=body, content_type=JSON, headers=headers)
        headers.append((HEADER_LENGTH, str(json_length)))
        return Answer(body=body, content_type="application/octet-stream", headers=headers)
