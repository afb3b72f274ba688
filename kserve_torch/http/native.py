"""TorchServe's inference API: ``/ping``, ``/predictions`` and its older forms (CONTRACT N1-N25)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kserve_torch.codec import native
from kserve_torch.codec.envelope import Opened, Seal, open_envelope
from kserve_torch.codec.replies import check_status, sendable
from kserve_torch.engine.aside import aside
from kserve_torch.engine.emissions import Emissions
from kserve_torch.errors import AnswerTooLarge, InvalidInput, ServingError
from kserve_torch.handler.tensors import save_tensor
from kserve_torch.http.api import model_api, whole_api
from kserve_torch.http.call import Answer, Call, Endpoint
from kserve_torch.http.native_json import find, native_error, native_json, with_native_headers
from kserve_torch.http.serve import Serve, deadline
from kserve_torch.http.streaming import answer_or_stream
from kserve_torch.messages import NOTHING, Request, RowReply, Verb, fresh_id
from kserve_torch.models import describe
from kserve_torch.models.report import log_unsendable
from kserve_torch.tokens import Access

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kserve_torch.models.registry import Registry
    from kserve_torch.settings import Settings
    from kserve_torch.tokens import Tokens

_MODEL = r"/(?P<model>[^/]*)"
_TARGET = _MODEL + r"(?:/(?P<version>[^/]+)(?:/(?P<rest>.+))?)?"
#: Paths of other protocols: a model with one of these names has no legacy path.
_NOT_LEGACY = r"(?!/(?:v1|v2|models|metrics)/)"


class Native:
    """Answers inference as TorchServe does, on every socket.

    Args:
        registry: the models.
        settings: ``service_envelope``, ``decode_input_request``.
        tokens: the keys, if token authorisation is on.
    """

    def __init__(self, registry: Registry, settings: Settings, tokens: Tokens | None) -> None:
        self._registry = registry
        self._settings = settings
        self._tokens = tokens
        self._serve = Serve(registry, "native", native_error)
        legacy = partial(self._infer, legacy=True)
        # The first path that matches decides; any method is accepted (CONTRACT T-15).
        self._routes: tuple[tuple[re.Pattern[str], Endpoint], ...] = (
            (re.compile("/predictions" + _TARGET), self._infer),
            (re.compile("/explanations" + _TARGET), partial(self._infer, verb=Verb.EXPLAIN)),
            (re.compile("/ping(?:/.*)?"), self._ping),
            (re.compile("/invocations"), self._invocations),
            (re.compile("/models" + _MODEL + "/invoke"), legacy),
            (re.compile(_NOT_LEGACY + _MODEL + "(?:/(?P<version>[^/]+))?/predict"), legacy),
        )

    async def route(self, call: Call) -> Answer | None:
        """The answer, or None if the path is not one of these.

        Raises:
            ServingError: no valid key, or no model is named.
        """
        request_id = fresh_id()
        answer = await self._dispatch(call, request_id)
        return answer and with_native_headers(answer, request_id)

    async def _dispatch(self, call: Call, request_id: str) -> Answer | None:
        path = call.path.rstrip("/")
        if path == "/api-description" or (not path and call.method == "OPTIONS"):
            return native_json(whole_api(management=call.management))
        for pattern, endpoint in self._routes:
            match = pattern.fullmatch(path)
            if match is not None:
                if self._tokens is not None:
                    self._tokens.check(Access.INFERENCE, call.headers.get("authorization"))
                return await endpoint(call, request_id, **match.groupdict())
        return None

    # --- endpoints ---

    async def _ping(self, call: Call, request_id: str) -> Answer:
        if describe.healthy(self._registry):
            return native_json({"status": "Healthy"})
        return native_json({"status": "Unhealthy"}, 500)

    async def _invocations(self, call: Call, request_id: str) -> Answer:
        model = call.params().get("model_name") or _named_in_form(call)
        model = model or self._only_startup_model()
        return await self._infer(call, request_id, model, legacy=True)

    def _only_startup_model(self) -> str:
        registry = self._registry
        names = [name for name in registry.names() if registry.find(name).loaded_at_startup]
        if len(names) != 1:
            raise InvalidInput("Parameter model_name is required.")
        return names[0]

    # --- inference ---

    async def _infer(
        self,
        call: Call,
        request_id: str,
        model: str,
        version: str | None = None,
        rest: str | None = None,
        verb: Verb = Verb.PREDICT,
        legacy: bool = False,
    ) -> Answer:
        """Answer an inference.

        Args:
            call: the HTTP request.
            request_id: of the answer.
            model: from the path, as are the next two.
            version: None for the default.
            rest: what follows the version (CONTRACT R4).
            verb: predict or explain.
            legacy: whether query parameters become fields of the row (CONTRACT R1).
        """
        asked = Request(
            id=request_id,
            model=model,
            version=version,
            asked=version or "",
            verb=verb,
            rows=(),
            headers=call.headers,
            url_path=rest or "",
        )
        params = call.params() if legacy else NOTHING
        emissions = Emissions()
        try:
            find(self._registry, model, version)
            if call.method == "OPTIONS":
                return native_json(model_api(model, management=False))
            request, seal = await aside(len(call.body), self._read, call, asked, params, emissions)
        except Exception as error:
            return self._serve.fail(call, asked, error)

        def unsendable(error: ServingError) -> Answer:
            log_unsendable(self._registry, request, error)
            return self._serve.fail(call, request, error)

        return await answer_or_stream(
            self._serve(call, request, lambda reply: self._answer(seal(request, reply))),
            emissions,
            self._answer,
            unsendable,
        )

    def _read(
        self, call: Call, asked: Request, params: Mapping[str, str], emissions: Emissions
    ) -> tuple[Request, Seal]:
        decoded, opened = self._open(call, params)
        request = replace(
            asked,
            rows=opened.rows,
            again=lambda: self._open(call, params)[1].rows,
            content_types=decoded.content_types,
            element=opened.element,
            deadline=deadline(call),
            parts=emissions,
            snapshot=opened.snapshot,
        )
        return request, opened.seal

    def _open(self, call: Call, params: Mapping[str, str]) -> tuple[native.NativeRequest, Opened]:
        decoded = native.decode(
            call.body,
            call.headers.get("content-type", ""),
            params,
            decode_input=self._settings.decode_input_request,
        )
        return decoded, open_envelope(self._settings.service_envelope, decoded.row)

    def _answer(self, row: RowReply) -> Answer:
        """One row's reply, with the status and headers that the handler set (CONTRACT R8, R9)."""
        body, content_type = native.encode(row, save_tensor)
        most = self._settings.max_response_size
        if len(body) > most:
            raise AnswerTooLarge(f"the answer has {len(body)} bytes, max_response_size is {most}")
        check_status(row)
        content_type = str(content_type).strip()  # a handler may have set anything
        headers = sendable({**row.headers, "content-type": content_type})
        return Answer(status=row.status, body=body, content_type=content_type, headers=headers)


def _named_in_form(call: Call) -> str:
    """The field ``model_name`` of a form; "" if there is none or the body is not a form."""
    if call.content_type() not in native.FORMS:
        return ""
    form = native.decode(call.body, call.headers["content-type"], decode_input=False)
    return str(form.row.get("model_name", b""), "utf-8", "replace")
