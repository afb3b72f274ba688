"""TorchServe's management service, `ManagementAPIsService` (CONTRACT P2, 3.12).

Each RPC is passed to the REST endpoint of the same meaning, so both always agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import orjson

from kserve_torch.errors import InvalidInput, VersionNotFound
from kserve_torch.grpc.protos import management_pb2 as pb
from kserve_torch.grpc.rpc import Call
from kserve_torch.http.exchange import Call as HttpCall
from kserve_torch.http.management import Management

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry
    from kserve_torch.settings import Settings

SERVICE = pb.DESCRIPTOR.services_by_name["ManagementAPIsService"]


class TorchServeManagement:
    """Servicer of `SERVICE`.

    Args:
        registry: the models.
        settings: ``enable_model_api`` and ``unregister_model_timeout``.
    """

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._rest = Management(registry, settings, tokens=None)

    async def DescribeModel(
        self, message: pb.DescribeModelRequest, call: Call
    ) -> pb.ManagementResponse:
        """Limits, workers and queue of the default version, of one, or of ``all``, as JSON."""
        path = _path(message.model_name, message.model_version)
        return await self._answer("GET", path, customized=message.customized)

    async def ListModels(self, message: pb.ListModelsRequest, call: Call) -> pb.ManagementResponse:
        """One page of the models, as JSON."""
        page = {"limit": message.limit, "next_page_token": message.next_page_token}
        return await self._answer("GET", "/models", **page)

    async def RegisterModel(
        self, message: pb.RegisterModelRequest, call: Call
    ) -> pb.ManagementResponse:
        """Enter an archive and start its workers; waits for them if asked to (CONTRACT G21)."""
        return await self._answer(
            "POST",
            "/models",
            url=message.url,
            model_name=message.model_name,
            handler=message.handler,
            runtime=message.runtime,
            batch_size=message.batch_size,
            max_batch_delay=message.max_batch_delay,
            response_timeout=message.response_timeout,
            startup_timeout=message.startup_timeout,
            initial_workers=message.initial_workers,
            synchronous="true" if message.synchronous else "false",
        )

    async def ScaleWorker(
        self, message: pb.ScaleWorkerRequest, call: Call
    ) -> pb.ManagementResponse:
        """Change a version's number of workers; waits for them only if asked to."""
        return await self._answer(
            "PUT",
            _path(message.model_name, message.model_version),
            min_worker=message.min_worker,
            max_worker=message.max_worker,
            synchronous=message.synchronous,
        )

    async def SetDefault(self, message: pb.SetDefaultRequest, call: Call) -> pb.ManagementResponse:
        """Make a version the default of its model."""
        if not message.model_version:
            raise InvalidInput("Parameter model_version is required.")
        path = _path(message.model_name, message.model_version)
        return await self._answer("PUT", f"{path}/set-default")

    async def UnregisterModel(
        self, message: pb.UnregisterModelRequest, call: Call
    ) -> pb.ManagementResponse:
        """Drain a version and remove it."""
        return await self._answer("DELETE", _path(message.model_name, message.model_version))

    async def _answer(self, method: str, path: str, **params: Any) -> pb.ManagementResponse:
        """The endpoint's status text, or all of its JSON if that has none."""
        given = {name: value for name, value in params.items() if value}
        rest = HttpCall(method=method, path=path, query=urlencode(given), management=True)
        answer = await self._rest.route(rest)
        if answer is None:  # over REST, /models/{model}/invoke is an inference
            model, version = path.split("/")[2:]
            raise VersionNotFound(f"Model version: {version} does not exist for model: {model}")
        assert isinstance(answer.body, bytes)
        said = orjson.loads(answer.body)
        if isinstance(said, dict) and "status" in said:
            return pb.ManagementResponse(msg=said["status"])
        return pb.ManagementResponse(msg=answer.body.decode().rstrip())


def _path(model: str, version: str) -> str:
    """The path of a model, or of one version of it."""
    for name, value in (("model_name", model), ("model_version", version)):
        if "/" in value:
            raise InvalidInput(f"Parameter {name}: {value!r} has a slash")
    if not model:
        raise InvalidInput("Parameter model_name is required.")
    return f"/models/{model}/{version}" if version else f"/models/{model}"
