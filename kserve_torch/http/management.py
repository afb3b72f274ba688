"""TorchServe's management API: ``/models...`` and ``/token`` (CONTRACT G1-G22).

It answers on the management socket only; registering and removing models also needs
``enable_model_api``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kserve_torch.codec import document
from kserve_torch.codec.document import JSON
from kserve_torch.errors import NOT_ALLOWED, MethodNotAllowed
from kserve_torch.http.api import model_api
from kserve_torch.http.exchange import Answer, Call, Endpoint
from kserve_torch.http.native_json import native_json, with_native_headers
from kserve_torch.messages import fresh_id
from kserve_torch.models import describe
from kserve_torch.models.manager import Manager, Outcome, find
from kserve_torch.models.registration import Registration
from kserve_torch.tokens import Access

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kserve_torch.models.registry import Registry
    from kserve_torch.settings import Settings
    from kserve_torch.tokens import Tokens

_MODEL = r"/models/(?P<model>[^/]+)"
_SET_DEFAULT = _MODEL + r"/(?P<version>[^/]+)/set-default"
_VERSION = _MODEL + r"(?:/(?P<version>[^/]+))?"
#: An inference route, although it begins like management (CONTRACT N4).
_INVOKE = re.compile(r"/models/[^/]+/invoke")


class Management:
    """Answers the routes that describe and change models.

    Args:
        registry: the models.
        settings: ``enable_model_api`` and ``unregister_model_timeout``.
        tokens: the keys, if token authorisation is on.
    """

    def __init__(self, registry: Registry, settings: Settings, tokens: Tokens | None) -> None:
        self.manager = Manager(registry, settings)
        self._registry = registry
        self._tokens = tokens
        # Path, then method to endpoint; the first path that matches decides.
        self._routes: tuple[tuple[re.Pattern[str], dict[str, Endpoint]], ...] = (
            (re.compile("/models"), {"GET": self._list, "POST": self._register}),
            (re.compile(_SET_DEFAULT), {"PUT": self._set_default}),
            (
                re.compile(_VERSION),
                {
                    "GET": self._describe,
                    "PUT": self._scale,
                    "DELETE": self._unregister,
                    "OPTIONS": self._openapi,
                },
            ),
        )

    async def route(self, call: Call) -> Answer | None:
        """The answer, or None if the path is not one of these or not on this socket.

        Raises:
            ServingError: the call is refused, or has failed.
        """
        path = call.path.rstrip("/")
        if not call.management or _INVOKE.fullmatch(path):
            return None
        answer = await self._dispatch(call, path)
        return answer and with_native_headers(answer, fresh_id())

    async def _dispatch(self, call: Call, path: str) -> Answer | None:
        if path == "/token" and self._tokens is not None:
            return self._renew_token(call, self._tokens)
        for pattern, methods in self._routes:
            match = pattern.fullmatch(path)
            if match is None:
                continue
            if self._tokens is not None:
                self._tokens.check(Access.MANAGEMENT, call.headers.get("authorization"))
            if call.method not in methods:
                raise MethodNotAllowed(NOT_ALLOWED, methods)
            return await methods[call.method](call, **match.groupdict())
        return None

    # --- questions ---

    async def _list(self, call: Call) -> Answer:
        params = call.params()
        limit = _integer(params.get("limit"), describe.PAGE_LIMIT)
        token = _integer(params.get("next_page_token"), 0)
        return native_json(describe.list_models(self._registry, limit, token))

    async def _describe(self, call: Call, model: str, version: str | None) -> Answer:
        customized = _truth(call.params().get("customized"))
        return native_json(await self.manager.describe(model, version, customized))

    async def _openapi(self, call: Call, model: str, version: str | None) -> Answer:
        find(self._registry, model, version)
        return native_json(model_api(model, management=True))

    # --- changes ---

    async def _register(self, call: Call) -> Answer:
        self.manager.check_model_api()
        return _told(await self.manager.register(Registration.read(_parameters(call))))

    async def _scale(self, call: Call, model: str, version: str | None) -> Answer:
        params = call.params()
        fewest = _integer(params.get("min_worker"), 1)
        most = _integer(params.get("max_worker"), fewest)
        synchronous = _truth(params.get("synchronous"))
        return _told(await self.manager.scale(model, version, fewest, most, synchronous))

    async def _set_default(self, call: Call, model: str, version: str) -> Answer:
        return _told(self.manager.set_default(model, version))

    async def _unregister(self, call: Call, model: str, version: str | None) -> Answer:
        return _told(await self.manager.unregister(model, version))

    # --- tokens ---

    def _renew_token(self, call: Call, tokens: Tokens) -> Answer:
        tokens.renew(call.params().get("type", ""), call.headers.get("authorization"))
        return Answer(body=b"\n", content_type=JSON)


def _told(outcome: Outcome) -> Answer:
    return native_json({"status": outcome.text}, outcome.http)


def _parameters(call: Call) -> Mapping[str, Any]:
    """Those of a JSON body if the call has one, else those of the query."""
    return document.parse_object(call.body) if call.content_type() == JSON else call.params()


def _truth(text: str | None) -> bool:
    return (text or "").lower() == "true"


def _integer(text: str | None, default: int) -> int:
    """A whole number, or ``default`` for any other text, as TorchServe does (CONTRACT G2)."""
    try:
        return int(text or "")
    except ValueError:
        return default
