"""TorchServe's management API: ``/models...`` and ``/token`` (CONTRACT G1-G22).

It answers on the management socket only; registering and removing models also needs
``enable_model_api``. What a client does not wait for goes on in the background, and its failure is
logged.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

from kserve_torch.codec import document
from kserve_torch.codec.document import JSON
from kserve_torch.engine.tasks import keep, log_failure, to_the_end
from kserve_torch.errors import (
    NOT_ALLOWED,
    HandlerError,
    InvalidInput,
    LoadFailed,
    MethodNotAllowed,
    OutOfMemory,
    RequestTimeout,
)
from kserve_torch.http.api import model_api
from kserve_torch.http.call import Answer, Call
from kserve_torch.http.native_json import find, native_json, with_native_headers
from kserve_torch.http.routes import Routes
from kserve_torch.messages import fresh_id
from kserve_torch.models import describe
from kserve_torch.models.registration import Registration, not_started
from kserve_torch.settings.limits import MOST_WORKERS
from kserve_torch.tokens import Access

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from kserve_torch.models.registry import Registry
    from kserve_torch.models.version import ModelVersion
    from kserve_torch.settings import Settings
    from kserve_torch.tokens import Tokens

log = logging.getLogger(__name__)

_MODEL = r"/models/(?P<model>[^/]+)"
_SET_DEFAULT = _MODEL + r"/(?P<version>[^/]+)/set-default"
_VERSION = _MODEL + r"(?:/(?P<version>[^/]+))?"
#: An inference route, although it begins like management (CONTRACT N4).
_INVOKE = re.compile(r"/models/[^/]+/invoke")
#: Stands for all versions, in the place of one.
ALL = "all"
_NO_MODEL_API = "Registering and unregistering need enable_model_api=true."


class Management:
    """Answers the routes that describe and change models.

    Args:
        registry: the models.
        settings: ``enable_model_api`` and ``unregister_model_timeout``.
        tokens: the keys, if token authorisation is on.
    """

    def __init__(self, registry: Registry, settings: Settings, tokens: Tokens | None) -> None:
        self._registry = registry
        self._settings = settings
        self._tokens = tokens
        self._routes = Routes(
            {
                "/models": {"GET": self._list, "POST": self._register},
                _SET_DEFAULT: {"PUT": self._set_default},
                _VERSION: {
                    "GET": self._describe,
                    "PUT": self._scale,
                    "DELETE": self._unregister,
                    "OPTIONS": self._openapi,
                },
            },
            refused=NOT_ALLOWED,
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
        if self._tokens is not None:
            if path == "/token":
                return self._renew_token(call, self._tokens)
            if f"{path}/".startswith("/models/"):
                self._tokens.check(Access.MANAGEMENT, call.headers.get("authorization"))
        return await self._routes(call)

    # --- questions ---

    async def _list(self, call: Call) -> Answer:
        params = call.params()
        limit = _integer(params.get("limit"), describe.PAGE_LIMIT)
        token = _integer(params.get("next_page_token"), 0)
        return native_json(describe.list_models(self._registry, limit, token))

    async def _describe(self, call: Call, model: str, version: str | None) -> Answer:
        """One element per version; the handlers describe themselves too if asked (CONTRACT E4)."""
        found = [find(self._registry, model, None if version == ALL else version)]
        if version == ALL:
            found = self._registry.versions(model)
        elements = [describe.model_version(one) for one in found]
        if _truth(call.params().get("customized")):
            for element, one in zip(elements, found, strict=True):
                element["customizedMetadata"] = await _metadata(one)
        try:
            return native_json(elements)
        except TypeError as error:
            raise HandlerError(f"the handler's description of itself: {error}") from error

    async def _openapi(self, call: Call, model: str, version: str | None) -> Answer:
        find(self._registry, model, version)
        return native_json(model_api(model, management=True))

    # --- changes ---

    async def _register(self, call: Call) -> Answer:
        """Register a model, or a further version of one (CONTRACT G1)."""
        self._check_model_api("GET")
        registration = Registration.read(_parameters(call))
        _check_workers(registration.workers or 0)
        return await to_the_end(self._registered(registration))

    async def _registered(self, registration: Registration) -> Answer:
        version = await registration.enter(self._registry)
        label = f'Model "{version.name}" Version: {version.version}'
        workers = registration.workers_of(version, self._settings)
        if not workers:
            # Not even on demand: a client that asks for none will say when to start some.
            await self._registry.scale(version, 0, 0)
            hint = "Use scale workers API to add workers for the model."
            return _told(f"{label} registered with 0 initial workers. {hint}")
        starting = registration.start(self._registry, version, workers)
        if not registration.synchronous:
            return _later(starting)
        await starting
        return _told(f"{label} registered with {workers} initial workers")

    async def _scale(self, call: Call, model: str, version: str | None) -> Answer:
        """Change a version's number of workers (CONTRACT G2)."""
        params = call.params()
        fewest = _integer(params.get("min_worker"), 1)
        most = _integer(params.get("max_worker"), fewest)
        if fewest < 0:
            raise InvalidInput(f"min_worker: {fewest} is negative")
        if most < fewest:
            raise InvalidInput("max_worker cannot be less than min_worker.")
        _check_workers(fewest)  # now, so that also those are told who do not wait
        found = find(self._registry, model, version)
        scaling = self._scaled(found, fewest, most)
        if not _truth(params.get("synchronous")):
            return _later(scaling)
        ready = await to_the_end(scaling)
        fewest = min(fewest, found.scaled_to[0])  # models with sequenceBatching have one at most
        if ready < fewest:
            return _told("Workers scaling in progress...", 206)
        text = f"Workers scaled to {fewest} for model: {model}"
        return _told(text if version is None else f"{text}, version: {version}")

    async def _scaled(self, version: ModelVersion, fewest: int, most: int) -> int:
        if not fewest:
            # TorchServe keeps the workers that there are, up to the maximum. With a minimum of 0,
            # idle ones would stop, and nobody could be served any more.
            fewest = min(version.scaled_to[0], most)
        try:
            return await self._registry.scale(version, fewest, most)
        except (LoadFailed, OutOfMemory) as error:
            raise not_started(version, error) from error

    async def _set_default(self, call: Call, model: str, version: str) -> Answer:
        """Make a version the default (CONTRACT G6)."""
        find(self._registry, model, version)
        self._registry.set_default(model, version)
        log.info("model %s answers with version %s by default", model, version)
        return _told(f'Default version successfully updated for model "{model}" to "{version}"')

    async def _unregister(self, call: Call, model: str, version: str | None) -> Answer:
        """Drain a version and remove it (CONTRACT G4)."""
        self._check_model_api("GET", "PUT", "OPTIONS")
        find(self._registry, model, version)
        seconds = self._settings.unregister_model_timeout
        try:
            async with asyncio.timeout(seconds):
                await to_the_end(self._registry.unregister(model, version))
        except TimeoutError:
            raise RequestTimeout(
                f"model {model} takes no more requests, but some still run after {seconds:g} s"
            ) from None
        return _told(f'Model "{model}" unregistered')

    def _check_model_api(self, *others: str) -> None:
        """Refuse unless ``enable_model_api`` is set (CONTRACT G20); ``others`` stay allowed."""
        if not self._settings.enable_model_api:
            raise MethodNotAllowed(f"{NOT_ALLOWED} {_NO_MODEL_API}", others)

    # --- tokens ---

    def _renew_token(self, call: Call, tokens: Tokens) -> Answer:
        tokens.renew(call.params().get("type", ""), call.headers.get("authorization"))
        return Answer(body=b"\n", content_type=JSON)


def _told(text: str, status: int = 200) -> Answer:
    return native_json({"status": text}, status)


def _later(work: Coroutine[Any, Any, Any]) -> Answer:
    keep(work).add_done_callback(log_failure)
    return _told("Processing worker updates...", 202)


def _check_workers(number: int) -> None:
    if number > MOST_WORKERS:
        raise InvalidInput(f"{number} workers are asked for, at most {MOST_WORKERS} can be had")


async def _metadata(version: ModelVersion) -> dict[str, Any]:
    """The handler's own description; empty if that is no JSON object."""
    metadata = await version.describe()
    if isinstance(metadata, dict):
        return metadata
    log.warning(
        "%s %s: the handler describes itself with %s, not with a JSON object",
        version.name,
        version.version,
        type(metadata).__name__,
    )
    return {}


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
