"""Health, metadata and the repository extension: the small routes of KServe's v1 and v2.

CONTRACT O1-O8, O11-O13, O80-O83, K1-K3; T-05, T-06.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kserve_torch.codec import document
from kserve_torch.engine.tasks import to_the_end
from kserve_torch.errors import InvalidInput, NotReady
from kserve_torch.http.call import Answer, Call, json_answer
from kserve_torch.http.routes import Routes, question
from kserve_torch.models import describe

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry

_MODEL = r"(?P<model>[^/:]+)"
_VERSION = r"(?:/versions/(?P<version>[^/]+))?"


class Metadata:
    """Answers questions about the server and its models.

    Args:
        registry: the models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._routes = Routes(
            {
                "": question(self._alive),
                "/v1/models": question(self._v1_models),
                f"/v1/models/{_MODEL}": question(self._v1_model),
                "/v2": question(self._server),
                "/v2/health/live": question(self._live),
                "/v2/health/ready": question(self._ready),
                "/v2/models": question(self._v1_models),
                f"/v2/models/{_MODEL}{_VERSION}/ready": question(self._model_ready),
                f"/v2/models/{_MODEL}{_VERSION}": question(self._model),
                "/v2/repository/index": {"POST": self._index},
                f"/v2/repository/models/{_MODEL}/load": {"POST": self._load},
                f"/v2/repository/models/{_MODEL}/unload": {"POST": self._unload},
            }
        )

    async def route(self, call: Call) -> Answer | None:
        """The answer, or None if the path is not one of these.

        Raises:
            ServingError: no such model, or what is asked of it cannot be done.
        """
        if not call.path.strip("/") and call.method not in ("GET", "HEAD"):
            return None  # TorchServe describes its API there
        return await self._routes(call)

    # --- v1 ---

    async def _alive(self, call: Call) -> Answer:
        return json_answer({"status": "alive"})

    async def _v1_models(self, call: Call) -> Answer:
        return json_answer({"models": self._registry.names()})

    async def _v1_model(self, call: Call, model: str) -> Answer:
        if not self._registry.is_ready(model):
            raise NotReady(f"Model with name {model} is not ready.")
        return json_answer({"name": model, "ready": True})

    # --- v2 ---

    async def _server(self, call: Call) -> Answer:
        return json_answer(describe.server_metadata())

    async def _live(self, call: Call) -> Answer:
        live = self._registry.live()
        return json_answer({"live": live}, 200 if live else 503)

    async def _ready(self, call: Call) -> Answer:
        ready = self._registry.ready()
        return json_answer({"ready": ready}, 200 if ready else 503)

    async def _model_ready(self, call: Call, model: str, version: str | None) -> Answer:
        ready = self._registry.is_ready(model, version)
        return json_answer({"name": model, "ready": ready}, 200 if ready else 503)

    async def _model(self, call: Call, model: str, version: str | None) -> Answer:
        return json_answer(describe.model_metadata(self._registry, model, version))

    async def _index(self, call: Call) -> Answer:
        ready = _object(call).get("ready")
        if not isinstance(ready, bool | None):
            raise InvalidInput(f"ready: expected true or false, got {document.kind_of(ready)}")
        return json_answer(describe.repository_index(self._registry, only_ready=bool(ready)))

    async def _load(self, call: Call, model: str) -> Answer:
        document.parameters_of(_object(call))
        await to_the_end(self._registry.load(model))
        return json_answer({"name": model, "load": True})

    async def _unload(self, call: Call, model: str) -> Answer:
        document.parameters_of(_object(call))
        await asyncio.shield(self._registry.unload(model))
        return json_answer({"name": model, "unload": True})


def _object(call: Call) -> dict[str, Any]:
    """The body as a JSON object; none is an empty one, and so is null, as generated clients say."""
    return {} if call.body.strip() in (b"", b"null") else document.parse_object(call.body)
