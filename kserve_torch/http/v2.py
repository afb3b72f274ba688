"""The data plane of the open inference protocol: ``infer`` and ``explain`` (CONTRACT 1.2, 1.3)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import orjson

from kserve_torch.codec import v2, v2_reply
from kserve_torch.codec.document import JSON
from kserve_torch.codec.replies import check_rows, row_headers
from kserve_torch.codec.v2 import V2Request
from kserve_torch.engine.aside import aside
from kserve_torch.http.call import Answer, Call
from kserve_torch.http.errors import kserve_answer
from kserve_torch.http.routes import Routes
from kserve_torch.http.serve import Serve, deadline
from kserve_torch.messages import Reply, Request, Verb
from kserve_torch.models.v2 import outputs_of, request_of

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion

HEADER_LENGTH = "inference-header-content-length"
#: Refused bodies of up to so many bytes are parsed once more, for the id in their log line.
_READ_AGAIN = 64 * 1024
_PATH = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/(?P<verb>infer|explain)"
_VERBS = {"infer": Verb.PREDICT, "explain": Verb.EXPLAIN}


class V2:
    """``POST /v2/models/{m}[/versions/{v}]/infer`` and ``.../explain``.

    Handlers read the request's ``parameters`` like headers, by ``context.get_request_header``, so
    that one handler serves all protocols. What they set with ``context.set_response_header`` goes
    out as a header and in the response's ``parameters``.

    Args:
        registry: the models.

    Attributes:
        route: answers calls of its paths.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._serve = Serve(registry, "v2", kserve_answer)
        self.route = Routes({_PATH: {"POST": self._infer}})

    async def _infer(self, call: Call, model: str, version: str | None, verb: str) -> Answer:
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
        try:
            found = self._registry.find(model, version)
            if decoded is None:
                decoded = await read_v2(call, found)
            request = request_of(found, decoded, call.headers, verb, version, deadline(call))
        except Exception as error:
            return self._serve.refuse(call, model, error, version, _refused_id(call))
        return await self._serve(call, request, partial(_answer, request, found, decoded))


async def read_v2(call: Call, found: ModelVersion) -> V2Request:
    """The body of a call for ``found``, a large one beside the event loop.

    Raises:
        InvalidInput: it cannot be decoded.
    """
    length, inputs = call.headers.get(HEADER_LENGTH), found.signature("inputs")
    return await aside(len(call.body), v2.decode, call.body, length, inputs)


def _refused_id(call: Call) -> str:
    """The id in the body of a refused request; "" for none."""
    length = call.headers.get(HEADER_LENGTH, "")
    try:
        head = call.body[: int(length)] if length.isdecimal() else call.body
        document = orjson.loads(head) if len(head) <= _READ_AGAIN else None
    except ValueError:
        document = None
    id_ = document.get("id") if isinstance(document, dict) else None
    return id_ if isinstance(id_, str) else ""


def _answer(request: Request, found: ModelVersion, decoded: V2Request, reply: Reply) -> Answer:
    """The response, in JSON or with binary data behind it."""
    check_rows(reply)
    headers = row_headers(reply)
    body, json_length = v2_reply.encode(
        reply.model,
        reply.version,
        # Echoed even if empty, which counts as none here (CONTRACT O21).
        request.id if decoded.id is None else decoded.id,
        outputs_of(found, decoded, request.verb, reply),
        decoded,
        dict(headers),
    )
    if json_length is None:
        return Answer(body=body, content_type=JSON, headers=headers)
    headers.append((HEADER_LENGTH, str(json_length)))
    return Answer(body=body, content_type="application/octet-stream", headers=headers)
